/** `holdfast/nestjs`: a module, `@Lock` for what is injected, `@LockRoute` for handlers, and 409 for whoever does not get it. */
import {
  Catch, ConfigurableModuleBuilder, createParamDecorator, Inject, mixin, Module, Optional, UseInterceptors,
  type ArgumentsHost, type CallHandler, type ExecutionContext, type HttpServer, type NestInterceptor, type OnApplicationShutdown, type Provider,
} from '@nestjs/common'
import { APP_FILTER, BaseExceptionFilter, HttpAdapterHost } from '@nestjs/core'
import { from, lastValueFrom, type Observable } from 'rxjs'
import { connect, type ConnectOptions } from '../connect.js'
import type { BackendFactory } from '../core/backend.js'
import { ConfigurationError, HoldfastError } from '../core/errors.js'
import type { AnyGuardOptions } from '../decorator/guard.js'
import { Lock as LockAnywhere } from '../decorator/index.js'
import { LockManager } from '../lock-manager.js'
import { locksOf } from '../locks-source.js'
import { currentLock } from '../primitives/lock.js'
import { goneSignal, type ServerResponse } from './gone.js'
import { answerTo, checkProblemOptions, type ProblemOptions } from './problem.js'
import { Route, type RouteOptions } from './route.js'

export { setLocks } from '../locks-source.js'
export { currentLock } from '../primitives/lock.js'
export type { Problem, ProblemOptions } from './problem.js'
/** As a class, so that Nest knows by its type what a constructor wants. */
export { LockManager }

export interface HoldfastModuleOptions extends ConnectOptions {
  /** A URL, or a backend made from your own client. Default: HOLDFAST_URL, or an SQLite file that this machine's processes share. */
  readonly store?: string | BackendFactory
  /** What a client is told that does not get a lock. */
  readonly problem?: ProblemOptions
}

export interface HoldfastModuleExtras {
  /** Whether every module can have the `LockManager` injected without importing this one. Default: true. */
  isGlobal?: boolean
  /** Whether errors of locks are answered by `LockExceptionFilter`. Default: true. */
  filter?: boolean
}

/** Answers with 409, or what the module's options say; other failures go on to Nest. */
export class LockExceptionFilter extends BaseExceptionFilter<HoldfastError> {
  readonly #problem: ProblemOptions

  constructor(applicationRef: HttpServer, problem: ProblemOptions = {}) {
    checkProblemOptions(problem)
    super(applicationRef)
    this.#problem = problem
  }

  override catch(error: HoldfastError, host: ArgumentsHost): void {
    // Elsewhere there is no status: whoever asks gets the error, as Nest gives it.
    if (host.getType() !== 'http') return
    const answer = answerTo(error, this.#problem)
    const response: unknown = host.switchToHttp().getResponse()
    const server = this.applicationRef!
    if (!answer || server.isHeadersSent!(response)) {
      super.catch(error, host)
      return
    }
    for (const [name, value] of Object.entries(answer.headers)) server.setHeader!(response, name, value)
    server.reply(response, answer.body, answer.status)
  }
}
Catch(HoldfastError)(LockExceptionFilter)

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN } = new ConfigurableModuleBuilder<HoldfastModuleOptions>()
  .setClassMethodName('forRoot')
  .setExtras<HoldfastModuleExtras>({ isGlobal: true, filter: true }, (definition, { isGlobal = true, filter = true }) => ({
    ...definition,
    global: isGlobal,
    providers: [...(definition.providers ?? []), ...(filter ? [FILTER] : [])],
  }))
  .build()

const FILTER: Provider = {
  provide: APP_FILTER,
  inject: [HttpAdapterHost, MODULE_OPTIONS_TOKEN],
  useFactory: ({ httpAdapter }: HttpAdapterHost, { problem }: HoldfastModuleOptions) => new LockExceptionFilter(httpAdapter, problem),
}

/**
 * Connects to the store, and gives the `LockManager` to whoever has it injected. It is closed when the application has shut down,
 * after the last request has been answered.
 */
export class HoldfastModule extends ConfigurableModuleClass implements OnApplicationShutdown {
  readonly #locks: LockManager

  constructor(locks: LockManager) {
    super()
    this.#locks = locks
  }

  async onApplicationShutdown(): Promise<void> {
    await this.#locks.close()
  }
}
Inject(LockManager)(HoldfastModule, undefined, 0)
Module({
  providers: [
    {
      provide: LockManager,
      inject: [MODULE_OPTIONS_TOKEN],
      useFactory: ({ store, problem: _problem, ...options }: HoldfastModuleOptions) => connect(store, options),
    },
  ],
  exports: [LockManager],
})(HoldfastModule)

const INJECTED = Symbol('the lock manager')

/** As in `holdfast/decorator`, with the manager of the module. */
export const Lock = ((options: AnyGuardOptions) => {
  const injected = (self: any) => self?.[INJECTED] ?? locksOf(undefined, self, 'A method with @Lock', self?.locks)
  const decorate = LockAnywhere({ locks: injected, ...options } as never) as LegacyDecorator
  return (target: object, name: string | symbol, descriptor: PropertyDescriptor) => {
    // A static method has no instance into which Nest could put it.
    if (typeof target === 'object') Inject(LockManager)(target, INJECTED)
    return decorate(target, name, descriptor)
  }
}) as unknown as typeof LockAnywhere

type LegacyDecorator = (target: object, name: string | symbol, descriptor: PropertyDescriptor) => PropertyDescriptor

/**
 * Runs a handler under a lock, which is released when the handler has settled, and before the answer is sent. The handler can have
 * it as a parameter, with `@HeldLock()`; `lock.signal` aborts if the lock is lost or the client has gone.
 *
 *     @Post(':id/pay')
 *     @LockRoute({ key: (request) => key`order:${request.params.id}` })
 *     async pay(@Param('id') id: string, @HeldLock() lock: DistributedLock) { … }
 */
export function LockRoute<Request = any>(options: Omit<RouteOptions<Request>, 'problem'>): MethodDecorator & ClassDecorator {
  class LockInterceptor implements NestInterceptor {
    readonly #route: Route<Request>

    constructor(locks: LockManager | undefined) {
      this.#route = new Route<Request>({ ...(locks && { locks }), ...options })
    }

    intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
      if (context.getType() !== 'http') throw new ConfigurationError('@LockRoute is for handlers of HTTP requests. Elsewhere use @Lock.')
      const http = context.switchToHttp()
      const response = http.getResponse<ServerResponse & { readonly raw?: ServerResponse }>()
      return from(this.#run(http.getRequest(), goneSignal(response.raw ?? response), next))
    }

    async #run(request: Request, gone: AbortSignal, next: CallHandler): Promise<unknown> {
      const outcome = await this.#route.run(request, gone, () => lastValueFrom(next.handle() as Observable<unknown>, { defaultValue: undefined }))
      if ('result' in outcome) return outcome.result
      if (outcome.refusal) throw outcome.refusal
      return undefined
    }
  }
  // What is wrong with the options is told where they are written, and not when the module is made.
  void new Route<Request>(options)
  // Without the module it is the common manager.
  Optional()(LockInterceptor, undefined, 0)
  Inject(LockManager)(LockInterceptor, undefined, 0)
  return UseInterceptors(mixin(LockInterceptor))
}

/** The lock that the handler runs under. */
export const HeldLock = createParamDecorator(() => currentLock())
