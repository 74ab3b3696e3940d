/** `@Lock` as it is compiled, in both modes that TypeScript has for decorators. */
import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { transform } from 'esbuild'
import ts from 'typescript'
import { describe, expect, it, onTestFinished } from 'vitest'

const run = promisify(execFile)
const root = fileURLToPath(new URL('../..', import.meta.url))

const PROGRAM = `
import { createLocks } from '${root}dist/index.js'
import { memoryBackend } from '${root}dist/backends/memory/index.js'
import { currentLock, Lock } from '${root}dist/decorator/index.js'

class Base {
  locks = createLocks(memoryBackend())
  name = 'base'

  @Lock({ key: 'order:{orderId}' })
  async pay(orderId: string, amount: number) {
    return [this.name, orderId, amount, currentLock()!.key]
  }

  @Lock({ key: (id: string) => id })
  async *pages(id: string) {
    yield currentLock()!.key
  }

  @Lock({ key: (id: string) => 'static:' + id, locks: createLocks(memoryBackend()) })
  static async make(id: string) {
    return currentLock()!.key
  }
}
class Derived extends Base {
  override name = 'derived'
}
const one = new Derived()
const [first, second] = await Promise.allSettled([one.pay('1', 2), one.pay('1', 3)])
const pages = []
for await (const page of one.pages('p')) pages.push(page)
console.log(JSON.stringify([
  first.status === 'fulfilled' && first.value,
  second.status === 'rejected' && second.reason.name,
  pages,
  await Base.make('s'),
  Base.prototype.pay.name,
  Base.prototype.pay.length,
]))
`

const COMPILERS = [['standard', false], ['experimental', true]] as const

describe.each(COMPILERS)('%s decorators', (_, experimentalDecorators) => {
  async function runs(source: string, { minify = false } = {}): Promise<string> {
    const { outputText } = ts.transpileModule(source, {
      compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, experimentalDecorators },
    })
    const folder = await mkdtemp(join(tmpdir(), 'holdfast-decorator-'))
    onTestFinished(() => rm(folder, { recursive: true }))
    const file = join(folder, 'program.mjs')
    await writeFile(file, minify ? (await transform(outputText, { minify, format: 'esm' })).code : outputText)
    return (await run(process.execPath, [file])).stdout
  }

  it('run a method under its lock, whatever it is', async () => {
    expect(JSON.parse(await runs(PROGRAM))).toEqual([['derived', '1', 2, 'order:1'], 'LockNotAcquiredError', ['p'], 'static:s', 'pay', 2])
  })

  it('after a minifier work where they do not depend on names', async () => {
    const named = PROGRAM.replace("key: 'order:{orderId}'", "key: 'order:{orderId}', params: ['orderId']")
    expect(JSON.parse(await runs(named, { minify: true }))).toEqual([['derived', '1', 2, 'order:1'], 'LockNotAcquiredError', ['p'], 'static:s', 'pay', 2])
  })

  it('after a minifier are an error at the start where they do, which says what to write', async () => {
    const failure: unknown = await runs(PROGRAM, { minify: true }).catch((error: unknown) => error)
    expect((failure as { stderr: string }).stderr).toContain("The names of the parameters of pay cannot be told from its source. Write key: (orderId) => key`order:${orderId}`, or name the parameters by position: params: ['orderId'].")
  })
})

it('the types are the same with experimental decorators', async () => {
  const tsc = join(root, 'node_modules/typescript/bin/tsc')
  await run(process.execPath, [tsc, '-p', join(root, 'test/types/legacy.tsconfig.json')])
})
