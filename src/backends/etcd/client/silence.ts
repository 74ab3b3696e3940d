/**
 * What has come while the event loop stood still is read before it is said that nothing has. (An immediate that does not keep the process
 * alive runs only when something else happens: so this one does.) Whoever is called has to look whether it is still so.
 */
export function onSilence(ms: number, judge: () => unknown): NodeJS.Timeout {
  return setTimeout(() => setImmediate(judge), ms)
}
