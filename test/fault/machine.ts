/**
 * The machine that a process believes to be on: its wall clock can be stepped, and its disk can be full, or stand still.
 *
 *     const machine = new Machine()
 *     const redis = await startRedis({ env: machine.env })
 *     machine.stepClock(120_000)
 *
 * It is a library in C that is preloaded, and works on Linux for programs that ask the C library. Redis and Node do; Go programs such
 * as etcd do not.
 */
import { execFileSync } from 'node:child_process'
import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { makeFolder, removeAtEnd } from '../support/processes.js'

const SOURCE = fileURLToPath(new URL('./machine/shim.c', import.meta.url))
const SLOTS = 64
const WORD = 8
const SLOT_AT = 0
const FULL_AT = 1
const STILL_AT = 2

export const canFakeMachines = process.platform === 'linux'

let folder: string | undefined
let count = 0

export class Machine {
  readonly #file: string
  #offsetMs = 0
  #slot = 0

  constructor() {
    folder ??= build()
    this.#file = join(folder, `machine-${++count}`)
    writeFileSync(this.#file, new Uint8Array(WORD * (1 + SLOTS)))
  }

  /** For the processes that are to be on it. */
  get env(): Record<string, string> {
    return { LD_PRELOAD: join(folder!, 'shim.so'), HOLDFAST_MACHINE: this.#file }
  }

  /** How far its clock is ahead of the real one. */
  get offsetMs(): number {
    return this.#offsetMs
  }

  /** At once; back if negative. Steps add up. */
  stepClock(ms: number): void {
    this.#offsetMs += ms
    this.#slot = (this.#slot + 1) % SLOTS
    this.#write(new BigInt64Array([BigInt(Math.round(this.#offsetMs)) * 1_000_000n]), WORD * (1 + this.#slot))
    // Only now, and it is one byte: nobody reads a slot that is half written.
    this.#write(Uint8Array.of(this.#slot), SLOT_AT)
  }

  set diskIsFull(isFull: boolean) {
    this.#write(Uint8Array.of(Number(isFull)), FULL_AT)
  }

  /** Whoever waits for something to be on it waits for as long. */
  set diskIsStill(isStill: boolean) {
    this.#write(Uint8Array.of(Number(isStill)), STILL_AT)
  }

  #write(bytes: NodeJS.ArrayBufferView, at: number): void {
    const file = openSync(this.#file, 'r+')
    try {
      writeSync(file, bytes, 0, bytes.byteLength, at)
    } finally {
      closeSync(file)
    }
  }
}

function build(): string {
  const made = makeFolder('machine')
  execFileSync('gcc', ['-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-o', join(made, 'shim.so'), SOURCE, '-ldl'])
  removeAtEnd(made)
  return made
}
