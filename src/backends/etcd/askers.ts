/**
 * Who is told what came of something. Most is known when a transaction is answered: a promise for each of its parts, and what it takes
 * to wait for that, would cost more than the part itself.
 */
import type { Failed } from '../../core/backend.js'
import { asFailed } from './errors.js'

export interface Asker<T> {
  answered(answer: T): void
  failed(error: unknown): void
}

/** It is told what comes of this. */
export function follow<T>(promise: Promise<T>, asker: Asker<T>): void {
  promise.then((answer) => asker.answered(answer), (error: unknown) => asker.failed(error))
}

export function promised<T>(ask: (asker: Asker<T>) => void): Promise<T> {
  return new Promise((answered, failed) => ask({ answered, failed }))
}

/** What came of each, in order. What fails is the state of that one item. */
export function statesOf<Item, State>(items: readonly Item[], ask: (item: Item, asker: Asker<State>) => void): Promise<(State | Failed)[]> {
  if (items.length === 0) return Promise.resolve([])
  return new Promise((resolve) => {
    const list = { states: new Array<State | Failed>(items.length), unanswered: items.length, resolve }
    for (let i = 0; i < items.length; i++) {
      const one = new OneOf<State>(list, i)
      try {
        ask(items[i]!, one)
      } catch (error) {
        one.failed(error)
      }
    }
  })
}

interface List<State> {
  readonly states: (State | Failed)[]
  unanswered: number
  readonly resolve: (states: (State | Failed)[]) => void
}

class OneOf<State> implements Asker<State> {
  readonly #list: List<State>
  readonly #i: number

  constructor(list: List<State>, i: number) {
    this.#list = list
    this.#i = i
  }

  answered(state: State | Failed): void {
    const list = this.#list
    list.states[this.#i] = state
    if (--list.unanswered === 0) list.resolve(list.states)
  }

  failed(error: unknown): void {
    this.answered(asFailed(error))
  }
}
