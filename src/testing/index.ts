/** `holdfast/testing`: what a backend has to do, as tests that any test runner can run. */
export { conformance, type Runner } from './conformance.js'
export type { Open } from './harness.js'
