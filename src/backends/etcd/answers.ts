/**
 * Where what becomes of one item of a list goes. Most of them are told at once when a transaction is answered: a promise for each, and
 * what it takes to wait for that, would cost more than the step itself.
 */
import type { Failed } from '../../core/backend.js'
import { asFailed } from './errors.js'

export interface Answer<State> {
  is(state: State): void
  failed(error: unknown): void
  /** It is what comes of this. */
  follows(state: Promise<State>): void
}

/** Of all items, in order. What fails is the state of that one item. */
export function answersTo<Item, State>(items: readonly Item[], step: (item: Item, answer: Answer<State>) => void): Promise<(State | Failed)[]> {
  if (items.length === 0) return Promise.resolve([])
  return new Promise((resolve) => {
    const list = { states: new Array<State | Failed>(items.length), unanswered: items.length, resolve }
    for (let i = 0; i < items.length; i++) {
      const answer = new OneOf<State>(list, i)
      try {
        step(items[i]!, answer)
      } catch (error) {
        answer.failed(error)
      }
    }
  })
}

export function answerTo<State>(step: (answer: Answer<State>) => void): Promise<State> {
  return new Promise((resolve, reject) => step({ is: resolve, failed: reject, follows: resolve }))
}

interface List<State> {
  readonly states: (State | Failed)[]
  unanswered: number
  readonly resolve: (states: (State | Failed)[]) => void
}

class OneOf<State> implements Answer<State> {
  readonly #list: List<State>
  readonly #i: number

  constructor(list: List<State>, i: number) {
    this.#list = list
    this.#i = i
  }

  is(state: State | Failed): void {
    const list = this.#list
    list.states[this.#i] = state
    if (--list.unanswered === 0) list.resolve(list.states)
  }

  failed(error: unknown): void {
    this.is(asFailed(error))
  }

  follows(state: Promise<State>): void {
    state.then((its) => this.is(its), (error: unknown) => this.failed(error))
  }
}
