/** `holdfast/fastify`: routes that run under a lock, and 409 for whoever does not get it. */
import type {
  FastifyInstance, FastifyReply, FastifyRequest, RawReplyDefaultExpression, RawRequestDefaultExpression, RawServerBase, RawServerDefault, RouteGenericInterface, RouteHandlerMethod,
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
export function lockRoute<
  Generic extends RouteGenericInterface,
  Server extends RawServerBase = RawServerDefault,
  Raw extends RawRequestDefaultExpression<Server> = RawRequestDefaultExpression<Server>,
  RawReply extends RawReplyDefaultExpression<Server> = RawReplyDefaultExpression<Server>,
>(
  options: RouteOptions<FastifyRequest<Generic, Server, Raw>>,
  handler: (
    this: FastifyInstance<Server, Raw, RawReply>,
    request: FastifyRequest<Generic, Server, Raw>,
    reply: FastifyReply<Generic, Server, Raw, RawReply>,
    lock: DistributedLock,
  ) => unknown,
): RouteHandlerMethod<Server, Raw, RawReply, Generic> {
  const route = new Route(options)
  checkHandler(handler)
  const locked = async function (
    this: FastifyInstance<Server, Raw, RawReply>,
    request: FastifyRequest<Generic, Server, Raw>,
    reply: FastifyReply<Generic, Server, Raw, RawReply>,
  ) {
    // Something else may have answered while it waited, such as a timeout.
    const outcome = await route.run(request, goneSignal(reply.raw), (lock) => (reply.sent ? undefined : handler.call(this, request, reply, lock)))
    if (reply.sent) return reply
    return 'answer' in outcome ? send(reply, outcome.answer) : outcome.result
  }
  // What a handler may give is known only once the schema is.
  return locked as RouteHandlerMethod<Server, Raw, RawReply, Generic>
}

/** Of HTTP/1 and HTTP/2. */
type AnyReply = FastifyReply<any, any, any, any>

/** For locks that are taken further inside: `app.setErrorHandler(lockErrorHandler())`. Other errors go to the handler above. */
export function lockErrorHandler(options: ProblemOptions = {}): (error: unknown, request: unknown, reply: AnyReply) => AnyReply {
  checkProblemOptions(options)
  return (error, _request, reply) => {
    const answer = answerTo(error, options)
    if (answer) return send(reply, answer)
    throw error
  }
}

function send(reply: AnyReply, { status, headers, body }: Answer): AnyReply {
  return reply.code(status).headers(headers).send(body)
}
