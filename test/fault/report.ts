/**
 * What a run of the nemesis leaves behind: a page to look at, numbers to keep, tables for the documentation, and a line
 * while it goes on. Nothing here judges; violations are those that the run has.
 */
export { markdownSummary, withSummary } from './report/markdown.js'
export { htmlReport } from './report/page.js'
export { progressLine, type Progress } from './report/progress.js'
export { summaryOf, type Summary } from './report/summary.js'
