import { loop } from './loop.mjs'

export const JOBS = { loop }
