/** `holdfast/express`: routes that run under a lock, and 409 for whoever does not get it. */
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express'
import type { DistributedLock } from '../primitives/lock.js'
import { goneSignal } from './gone.js'
import { answerTo, checkProblemOptions, type Answer, type ProblemOptions } from './problem.js'
import { checkHandler, Route, type RouteOptions } from './route.js'

export { setLocks, type LocksSource } from '../locks-source.js'
export type { Problem, ProblemOptions } from './problem.js'
export type { RouteOptions } from './route.js'

/**
 * Runs a handler under a lock, which is released when the promise that it gives is settled. `lock.signal` aborts if the lock is lost
 * or the client has gone.
 *
 *     app.post('/orders/:id/pay', lockRoute({ key: (req) => key`order:${req.params.id}` }, async (req, res, lock) => { … }))
 *
 * The path's parameters are not inferred through it: `(req: Request<{ id: string }>) => …` says what they are.
 */
export function lockRoute<Params = any, ResBody = any, ReqBody = any, Query = any, Locals extends Record<string, any> = Record<string, any>>(
  options: RouteOptions<Request<Params, ResBody, ReqBody, Query, Locals>>,
  handler: (req: Request<Params, ResBody, ReqBody, Query, Locals>, res: Response<ResBody, Locals>, lock: DistributedLock) => unknown,
): RequestHandler<Params, ResBody, ReqBody, Query, Locals> {
  const route = new Route(options)
  checkHandler(handler)
  return (req, res, next) => {
    // Something else may have answered while it waited, such as a timeout: then there is nothing to do, and nobody to tell.
    route.run(req, goneSignal(res), (lock) => (res.writableEnded ? undefined : handler(req, res, lock))).then((outcome) => {
      if ('answer' in outcome && !res.headersSent) send(res, outcome.answer)
    }, next)
  }
}

/** For locks that are taken further inside: `app.use(lockErrorHandler())` after all routes. Other errors are passed on. */
export function lockErrorHandler(options: ProblemOptions = {}): ErrorRequestHandler {
  checkProblemOptions(options)
  return (error, _req, res, next) => {
    const answer = res.headersSent ? undefined : answerTo(error, options)
    if (answer) send(res, answer)
    else next(error)
  }
}

function send(res: Pick<Response<any>, 'statusCode' | 'setHeader' | 'end'>, { status, headers, body }: Answer): void {
  res.statusCode = status
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  res.end(body)
}
