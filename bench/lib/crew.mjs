/** The processes of one measurement. They are asked all at once, and answer when each is done. */
import { fork, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { goProgram } from './go.mjs'

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

  /** `program`, if it is not Node that measures. */
  constructor(size, program) {
    this.#members = Array.from({ length: size }, () => new Member(program ? startProgram(program) : startNode()))
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

function startNode() {
  const child = fork(CHILD, FORK)
  return { child, send: (message) => child.send(message), listen: (onMessage) => child.on('message', onMessage) }
}

/** Each message is a line of JSON. */
function startProgram(name) {
  const child = spawn(goProgram(name), { stdio: ['pipe', 'pipe', 'ignore'] })
  // That it has ended is told below.
  child.stdin.on('error', () => {})
  return {
    child,
    send: (message) => child.stdin.write(`${JSON.stringify(message)}\n`),
    listen: (onMessage) => createInterface(child.stdout).on('line', (line) => onMessage(JSON.parse(line)))
  }
}

class Member {
  #child
  #send
  #gone
  #settle = []
  #failed

  constructor({ child, send, listen }) {
    this.#child = child
    this.#send = send
    children.add(child)
    listen(({ reply, failed }) => {
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
      this.#send({ method, argument })
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
