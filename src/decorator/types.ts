/** What can be said of a key at compile time: names, paths and types of placeholders, by the position of the parameters. */
import type { KeyPart } from '../core/key.js'

/** A method that can wait. */
export type Lockable = (...args: any[]) => PromiseLike<any> | AsyncGenerator<any, any, any>

/** Works in both modes: the method's type appears in the context of the one, and in the descriptor of the other. */
export interface LockDecorator<M extends Lockable> {
  (method: any, context: ClassMethodDecoratorContext<any, M>): any
  (target: object, property: string | symbol, descriptor: TypedPropertyDescriptor<M>): any
}

type Placeholders<T extends string> = T extends `${string}{${infer P}}${infer Rest}` ? P | Placeholders<Rest> : never

type PositionOf<N extends string, P extends readonly string[], Before extends 0[] = []> = P extends readonly [infer First, ...infer Rest extends readonly string[]]
  ? First extends N
    ? Before['length']
    : PositionOf<N, Rest, [...Before, 0]>
  : never

type At<V, Path extends string> = Path extends `${infer Step}.${infer Rest}`
  ? Step extends keyof V
    ? At<V[Step], Rest>
    : never
  : Path extends keyof V
    ? V[Path]
    : never

type NameIn<Placeholder extends string> = Placeholder extends `${infer N}.${string}` ? N : Placeholder

type ValueOf<Placeholder extends string, P extends readonly string[], A extends readonly unknown[]> = Placeholder extends `${infer N}.${infer Path}`
  ? At<A[PositionOf<N, P> & number], Path>
  : A[PositionOf<Placeholder, P> & number]

type ProblemWith<Placeholder extends string, P extends readonly string[], A extends readonly unknown[]> = Placeholder extends string
  ? NameIn<Placeholder> extends P[number]
    ? [ValueOf<Placeholder, P, A>] extends [never]
      ? `{${Placeholder}} is not there in that parameter`
      : ValueOf<Placeholder, P, A> extends KeyPart
        ? never
        : `{${Placeholder}} is not a string, number, bigint or boolean`
    : `{${Placeholder}} is not among params`
  : never

/** Nothing, if the template fits the parameters; else what is wrong, in the place of the key. */
export type Checked<T extends string, P extends readonly string[], A extends readonly unknown[]> = [ProblemWith<Placeholders<T>, P, A>] extends [never]
  ? unknown
  : { readonly key: ProblemWith<Placeholders<T>, P, A> }
