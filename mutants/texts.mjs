/**
 * Leaves the wording of errors alone: a test that repeats a message word for word would only be in the way of whoever improves it.
 * That an error is thrown, and which one, is mutated like everything else.
 */
import { declareValuePlugin, PluginKind } from '@stryker-mutator/api/plugin'

const isText = (path) => path.isStringLiteral() || path.isTemplateLiteral()
const isMessage = ({ parentPath: call, listKey }) =>
  listKey === 'arguments' && call.isNewExpression() && (call.node.callee.name ?? '').endsWith('Error')

export const strykerPlugins = [
  declareValuePlugin(PluginKind.Ignore, 'texts', {
    shouldIgnore: (path) => (isText(path) && isMessage(path) ? 'the wording of an error' : undefined)
  })
]
