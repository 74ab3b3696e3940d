/** How Stryker mutates src/core. What is mutated in a run is said by scripts/mutants.mjs, on the command line. */
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { cacheFile, SANDBOX } from './core.mjs'

export default {
  mutate: ['src/core/*.ts'],
  testRunner: 'vitest',
  plugins: [fileURLToPath(import.meta.resolve('@stryker-mutator/vitest-runner')), fileURLToPath(new URL('texts.mjs', import.meta.url))],
  // Which tests reach a mutant is known from the first run; to look for them by their imports takes a second each time.
  vitest: { configFile: 'mutants/vitest.config.mjs', related: false },
  coverageAnalysis: 'perTest',
  // What is made once, when a module is loaded (tables of names, limits), cannot be switched while tests run: each of these mutants
  // would need a process of its own.
  ignoreStatic: true,
  ignorers: ['texts'],
  disableTypeChecks: false,
  // More would make tests that wait for real time late, and a mutant that only seems to hang passes for killed.
  concurrency: Math.min(2, availableParallelism()),
  timeoutMS: 10_000,
  timeoutFactor: 3,
  incremental: true,
  incrementalFile: cacheFile('incremental.json'),
  reporters: [process.stdout.isTTY ? 'progress' : 'progress-append-only', 'json'],
  jsonReporter: { fileName: cacheFile('report.json') },
  // The score is scripts/mutants.mjs's to judge: in an incremental run the report has more in it than was asked for.
  thresholds: { high: 90, low: 80, break: null },
  tempDirName: SANDBOX,
  cleanTempDir: 'always',
  ignorePatterns: ['bench', 'coverage', 'dist', 'mutants/node_modules', '*.tgz'],
  allowConsoleColors: process.stdout.isTTY === true
}
