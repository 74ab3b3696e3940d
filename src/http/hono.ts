/** `holdfast/hono`: routes that run under a lock, and 409 for whoever does not get it. */
import type { Context, Env, ErrorHandler, Handler, Input } from 'hono'
import type { HandlerResponse } from 'hono/types'
import type { DistributedLock } from '../primitives/lock.js'
import { answerTo, checkProblemOptions, type Answer, type ProblemOptions } from './problem.js'
import { checkHandler, Route, type RouteOptions } from './route.js'

export { setLocks, type LocksSource } from '../locks-source.js'
export type { Problem, ProblemOptions } from './problem.js'
export type { RouteOptions } from './route.js'

/**
 * Runs a handler under a lock, which is released when the promise that it gives is settled, and before what it gives is sent.
 * `lock.signal` aborts if the lock is lost or the client has gone.
 *
 *     app.post('/orders/:id/pay', lockRoute({ key: (c) => key`order:${c.req.param('id')!}` }, async (c, lock) => { … }))
 */
export function lockRoute<E extends Env, P extends string, I extends Input, R extends HandlerResponse<any>>(
  options: RouteOptions<Context<E, P, I>>,
  handler: (c: Context<E, P, I>, lock: DistributedLock) => R,
): Handler<E, P, I, R> {
  const route = new Route(options)
  checkHandler(handler)
  const locked = async (c: Context<E, P, I>) => {
    const outcome = await route.run(c, c.req.raw.signal, (lock) => handler(c, lock))
    return 'answer' in outcome ? send(c, outcome.answer) : outcome.result
  }
  // The answers of ours are none of those that the handler declares.
  return locked as Handler<E, P, I, any>
}

/** For locks that are taken further inside: `app.onError(lockErrorHandler())`. Other errors go to `otherwise`. */
export function lockErrorHandler<E extends Env>(options: ProblemOptions = {}, otherwise: ErrorHandler<E> = likeHono): ErrorHandler<E> {
  checkProblemOptions(options)
  return (error, c) => {
    const answer = answerTo(error, options)
    return answer ? send(c, answer) : otherwise(error, c)
  }
}

/** What Hono does if it is told nothing. */
const likeHono: ErrorHandler<any> = (error, c) => {
  if ('getResponse' in error) {
    const response = error.getResponse()
    // With the headers that others have set.
    return c.newResponse(response.body, response)
  }
  console.error(error)
  return c.text('Internal Server Error', 500)
}

function send(c: Context<any, any, any>, { status, headers, body }: Answer): Response {
  return c.newResponse(body, status as 409, { ...headers })
}
