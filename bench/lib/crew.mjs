/** The processes of one measurement. They are asked all at once, and answer when each is done. */
import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const CHILD = fileURLToPath(new URL('child.mjs', import.meta.url))
const FORK = {
  execArgv: ['--expose-gc'],
  stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  // Typed arrays arrive as such.
  serialization: 'advanced'
}
const children = new Set()

process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')))

/** It was not done in time: hopeless at this, and not to be waited for. */
export class Capped extends Error {}

export class Crew {
  #members

  constructor(size) {
    this.#members = Array.from({ length: size }, () => new Member())
  }

  /** `argumentOf` gives what the process of that index is told. */
  async ask(method, capMs, argumentOf = () => undefined) {
    let timer
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Capped(`not done within ${Math.round(capMs / 1000)} s`)), capMs)
    })
    try {
      const replies = this.#members.map((member, index) => member.ask(method, argumentOf(index)))
      return await Promise.race([Promise.all(replies), late])
    } finally {
      clearTimeout(timer)
    }
  }

  async end() {
    await Promise.all(this.#members.map((member) => member.end()))
  }
}

class Member {
  #child = fork(CHILD, FORK)
  #gone
  #settle = []
  #failed

  constructor() {
    children.add(this.#child)
    this.#child.on('message', ({ reply, failed }) => {
      if (failed) this.#fail(failed)
      else this.#settle.shift()?.resolve(reply)
    })
    this.#child.on('error', ({ message }) => this.#fail(message))
    this.#gone = new Promise((resolve) => {
      this.#child.once('exit', (code, signal) => {
        children.delete(this.#child)
        this.#fail(`its process ended with ${code ?? signal}`)
        resolve()
      })
    })
  }

  ask(method, argument) {
    return new Promise((resolve, reject) => {
      if (this.#failed) return reject(new Error(this.#failed))
      this.#settle.push({ resolve, reject })
      this.#child.send({ method, argument })
    })
  }

  async end() {
    this.#child.kill('SIGKILL')
    await this.#gone
  }

  #fail(message) {
    this.#failed ??= message
    for (const { reject } of this.#settle.splice(0)) reject(new Error(this.#failed))
  }
}
