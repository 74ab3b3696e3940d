/** `holdfast/nestjs` in applications of Nest: what is injected where, what starts, and what ends. */
import 'reflect-metadata'
import { Catch, Controller, Get, HttpCode, Injectable, Module, Param, UseGuards, type ArgumentsHost, type INestApplication, type NestInterceptor, type Type } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js'
import { ExpressAdapter } from '@nestjs/platform-express'
import { EMPTY } from 'rxjs'
import { describe, expect, it, onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { HoldfastModule, Lock, LockExceptionFilter, LockManager, LockRoute, currentLock, setLocks } from '../../src/http/nestjs.js'
import { connect, createLocks, type BackendFactory } from '../../src/index.js'
import { deferred } from '../support/deferred.js'
import { decorate } from '../support/web-apps.js'

const quiet = { logger: false, abortOnError: false } as const

function moduleOf(parts: Parameters<typeof Module>[0]): Type {
  class Any {}
  Module(parts)(Any)
  return Any
}

/** A provider whose work ends when it is told to. */
function worker() {
  const end = deferred()
  class Worker {
    async work(id: string): Promise<string> {
      await end.promise
      return `${id} under ${currentLock()?.key}`
    }
  }
  decorate(Worker, 'work', [Lock({ key: (id: string) => `job:${id}` })])
  Injectable()(Worker)
  return { Worker, end: () => end.resolve() }
}

async function context(module: Type) {
  const app = await NestFactory.createApplicationContext(module, quiet)
  onTestFinished(() => app.close())
  return app
}

async function serve(module: Type, prepare = (_app: INestApplication) => {}): Promise<{ app: INestApplication; get: (path: string) => Promise<Response> }> {
  const app = await NestFactory.create(module, new ExpressAdapter(), quiet)
  onTestFinished(() => app.close())
  prepare(app)
  await app.listen(0, '127.0.0.1')
  const url = await app.getUrl()
  return { app, get: (path) => fetch(`${url}/${path}`, { headers: { connection: 'close' } }) }
}

describe('@Lock', () => {
  it('uses the manager of the module that its instance belongs to', async () => {
    const { Worker, end } = worker()
    const one = await context(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], providers: [Worker] }))
    const other = await context(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], providers: [Worker] }))
    const first = one.get(Worker).work('1')
    await expect(one.get(Worker).work('1')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED', key: 'job:1' })
    const elsewhere = other.get(Worker).work('1')
    end()
    expect(await Promise.all([first, elsewhere])).toEqual(['1 under job:1', '1 under job:1'])
  })

  it('is inherited', async () => {
    const { Worker, end } = worker()
    class Special extends Worker {}
    Injectable()(Special)
    end()
    const app = await context(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], providers: [Special] }))
    expect(await app.get(Special).work('1')).toBe('1 under job:1')
  })

  it('of an instance that was made by hand uses its own manager, or the common one, and else says what is missing', async () => {
    const { Worker, end } = worker()
    end()
    await expect(new Worker().work('1')).rejects.toThrow('has no lock manager')
    const locks = createLocks(memoryBackend())
    onTestFinished(() => locks.close())
    expect(await Object.assign(new Worker(), { locks }).work('1')).toBe('1 under job:1')
    setLocks(locks)
    onTestFinished(() => setLocks(undefined))
    expect(await new Worker().work('1')).toBe('1 under job:1')
  })

  it('stands above or below the decorators of a route', async () => {
    class Jobs {
      async above(id: string): Promise<string> {
        return `${id} under ${currentLock()?.key}`
      }

      async below(id: string): Promise<string> {
        return `${id} under ${currentLock()?.key}`
      }
    }
    const lock = Lock({ key: (id: string) => `job:${id}` })
    decorate(Jobs, 'above', [lock, Get('above/:id'), HttpCode(202)], [Param('id')])
    decorate(Jobs, 'below', [Get('below/:id'), HttpCode(202), lock], [Param('id')])
    Controller()(Jobs)
    const store = memoryBackend()
    const { get } = await serve(moduleOf({ imports: [HoldfastModule.forRoot({ store })], controllers: [Jobs] }))
    const others = await connect(store)
    onTestFinished(() => others.close())
    for (const path of ['above/1', 'below/1']) {
      const answer = await get(path)
      expect([answer.status, await answer.text()]).toEqual([202, '1 under job:1'])
      await others.withLock('job:1', async () => expect((await get(path)).status).toBe(409))
    }
  })

  it('is an error at the start where there is no module', async () => {
    const { Worker } = worker()
    await expect(context(moduleOf({ providers: [Worker] }))).rejects.toThrow(/LockManager/)
  })
})

describe('the module', () => {
  it('can be told later what it needs to know', async () => {
    class Settings {
      readonly store = memoryBackend()
    }
    const settings = moduleOf({ providers: [Settings], exports: [Settings] })
    const useFactory = ({ store }: Settings): { store: BackendFactory; ttlMs: number } => ({ store, ttlMs: 3_000 })
    const app = await context(moduleOf({ imports: [HoldfastModule.forRootAsync({ imports: [settings], inject: [Settings], useFactory })] }))
    const lock = await app.get(LockManager).lock('k')
    class Options {
      create(): { store: BackendFactory } {
        return { store: memoryBackend() }
      }
    }
    const byClass = await context(moduleOf({ imports: [HoldfastModule.forRootAsync({ useClass: Options })] }))
    expect(await byClass.get(LockManager).tryLock('k')).not.toBeNull()
    expect(lock.remainingMs).toBeGreaterThan(0)
    expect(lock.remainingMs).toBeLessThanOrEqual(3_000)
  })

  it('that cannot connect keeps the application from starting', async () => {
    const nowhere = HoldfastModule.forRoot({ store: 'redis://127.0.0.1:1', connectTimeoutMs: 200 })
    await expect(context(moduleOf({ imports: [nowhere] }))).rejects.toMatchObject({ code: 'CONNECTOR' })
  })

  it('with options that are not there says so', async () => {
    const wrong = HoldfastModule.forRoot({ store: memoryBackend(), ttl: 1 } as never)
    await expect(context(moduleOf({ imports: [wrong] }))).rejects.toThrow('There is no connect option "ttl"')
    await expect(serve(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend(), problem: { status: 200 } })] }))).rejects.toThrow('status is one of an error')
  })

  it('gives its manager to those who import it only, if it is told to', async () => {
    const { Worker } = worker()
    const apart = moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend(), isGlobal: false })] })
    await expect(context(moduleOf({ imports: [apart], providers: [Worker] }))).rejects.toThrow(/LockManager/)
  })

  it('closes its manager when the application has shut down, after the last request', async () => {
    const end = deferred()
    const begun = deferred()
    class Jobs {
      async run(): Promise<string> {
        begun.resolve()
        await end.promise
        currentLock()!.assertHeld()
        return 'done'
      }
    }
    decorate(Jobs, 'run', [Get('run'), LockRoute({ key: () => 'job' })])
    Controller()(Jobs)
    const { app, get } = await serve(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], controllers: [Jobs] }))
    const locks = app.get(LockManager)
    const request = get('run')
    await begun.promise
    const closing = app.close()
    end.resolve()
    expect(await (await request).text()).toBe('done')
    await closing
    await expect(locks.lock('k')).rejects.toMatchObject({ code: 'MANAGER_CLOSED' })
  })
})

describe('@LockRoute', () => {
  function controller(key: () => string, decorators: MethodDecorator[] = []) {
    let calls = 0
    class Jobs {
      async run(id: string): Promise<string> {
        calls++
        return `${id} under ${currentLock()?.key}`
      }
    }
    decorate(Jobs, 'run', [Get(':id'), ...decorators, LockRoute({ key })], [Param('id')])
    Controller('jobs')(Jobs)
    return { Jobs, calls: () => calls }
  }

  it('asks for the lock after guards, and says at the start what is wrong with its options', async () => {
    class Nobody {
      canActivate(): boolean {
        return false
      }
    }
    let keys = 0
    const { Jobs, calls } = controller(() => `job ${++keys}`, [UseGuards(Nobody)])
    const { get } = await serve(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], controllers: [Jobs] }))
    expect((await get('jobs/1')).status).toBe(403)
    expect([keys, calls()]).toEqual([0, 0])
    expect(() => LockRoute({ key: 'job' as never })).toThrow('needs a key, as a function of the request')
    expect(() => LockRoute({ key: () => 'job', waitMs: -1 })).toThrow('waitMs')
  })

  it('is for a whole controller, too', async () => {
    class Jobs {
      async run(id: string): Promise<string> {
        return `${id} under ${currentLock()?.key}`
      }
    }
    decorate(Jobs, 'run', [Get(':id')], [Param('id')])
    Controller('jobs')(Jobs)
    LockRoute<{ params: { id: string } }>({ key: ({ params }) => `job:${params.id}` })(Jobs)
    const { get } = await serve(moduleOf({ imports: [HoldfastModule.forRoot({ store: memoryBackend() })], controllers: [Jobs] }))
    expect(await (await get('jobs/7')).text()).toBe('7 under job:7')
  })

  it('without a module uses the common manager', async () => {
    const { Jobs } = controller(() => 'job')
    const { get } = await serve(moduleOf({ controllers: [Jobs] }))
    expect((await get('jobs/1')).status).toBe(500)
    const locks = createLocks(memoryBackend())
    setLocks(locks)
    onTestFinished(async () => {
      setLocks(undefined)
      await locks.close()
    })
    expect(await (await get('jobs/1')).text()).toBe('1 under job')
  })

  it('says what it is for where there is no request', async () => {
    const { Jobs } = controller(() => 'job')
    const [Interceptor] = Reflect.getMetadata('__interceptors__', Object.getOwnPropertyDescriptor(Jobs.prototype, 'run')!.value) as [new () => NestInterceptor]
    const elsewhere = new ExecutionContextHost([{}, {}])
    elsewhere.setType('rpc')
    expect(() => new Interceptor().intercept(elsewhere, { handle: () => EMPTY })).toThrow('@LockRoute is for handlers of HTTP requests. Elsewhere use @Lock.')
  })

  it('leaves errors to filters of the application, where that is wanted', async () => {
    class Own {
      catch(error: Error, host: ArgumentsHost): void {
        host.switchToHttp().getResponse().status(418).json({ name: error.name })
      }
    }
    Catch()(Own)
    const store = memoryBackend()
    const others = await connect(store)
    onTestFinished(() => others.close())
    await others.lock('job')
    const statusOf = async (prepare?: (app: INestApplication) => void): Promise<number> => {
      const { Jobs } = controller(() => 'job')
      const { get } = await serve(moduleOf({ imports: [HoldfastModule.forRoot({ store, filter: false })], controllers: [Jobs] }), prepare)
      return (await get('jobs/1')).status
    }
    // By Nest itself, which does not know what this is.
    expect(await statusOf()).toBe(500)
    expect(await statusOf((app) => app.useGlobalFilters(new Own()))).toBe(418)
    expect(await statusOf((app) => app.useGlobalFilters(new LockExceptionFilter(app.getHttpAdapter(), { status: 423 })))).toBe(423)
  })
})
