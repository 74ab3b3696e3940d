/** `holdfast/fastify`: routes that run under a lock, and 409 for whoever does not get it. */
import type {
  FastifyInstance, FastifyReply, FastifyRequest, RawReplyDefaultExpression, RawRequestDefaultExpression, RawServerDefault, RouteGenericInterface, RouteHandlerMethod,
} from 'fastify'
import type { DistributedLock } from '../primitives/lock.js'
import { goneSignal } from './gone.js'
import { answerTo, checkProblemOptions, type Answer, type ProblemOptions } from './problem.js'
import { checkHandler, Route, type RouteOptions } from './route.js'

export { setLocks, type LocksSource } from '../locks-source.js'
export type { Problem, ProblemOptions } from './problem.js'
export type { RouteOptions } from './route.js'

/**
 * Runs a handler under a lock, which is released when the promise that it gives is settled, and before what it gives is sent.
 * `lock.signal` aborts if the lock is lost or the client has gone.
 *
 *     app.post('/orders/:id/pay', lockRoute({ key: (request) => key`order:${request.params.id}` }, async (request, reply, lock) => { … }))
 */
export function lockRoute<Generic extends RouteGenericInterface>(
  options: RouteOptions<FastifyRequest<Generic>>,
  handler: (this: FastifyInstance, request: FastifyRequest<Generic>, reply: FastifyReply<Generic>, lock: DistributedLock) => unknown,
): RouteHandlerMethod<RawServerDefault, RawRequestDefaultExpression, RawReplyDefaultExpression, Generic> {
  const route = new Route(options)
  checkHandler(handler)
  const locked = async function (this: FastifyInstance, request: FastifyRequest<Generic>, reply: FastifyReply<Generic>) {
    const outcome = await route.run(request, goneSignal(reply.raw), (lock) => handler.call(this, request, reply, lock))
    return 'answer' in outcome ? send(reply, outcome.answer) : outcome.result
  }
  // What a handler may give is known only once the schema is.
  return locked as RouteHandlerMethod<RawServerDefault, RawRequestDefaultExpression, RawReplyDefaultExpression, Generic>
}

/** For locks that are taken further inside: `app.setErrorHandler(lockErrorHandler())`. Other errors go to the handler above. */
export function lockErrorHandler(options: ProblemOptions = {}): (error: unknown, request: FastifyRequest, reply: FastifyReply) => FastifyReply {
  checkProblemOptions(options)
  return (error, _request, reply) => {
    const answer = answerTo(error, options)
    if (answer) return send(reply, answer)
    throw error
  }
}

function send(reply: FastifyReply<any>, { status, headers, body }: Answer): FastifyReply {
  return reply.code(status).headers(headers).send(body)
}
