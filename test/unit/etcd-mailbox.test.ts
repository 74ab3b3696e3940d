/** What others may have put into the mailbox of a process. */
import { expect, it } from 'vitest'
import { readMessage, writeMessage } from '../../src/backends/etcd/mailbox.js'

it('is read as it was written', () => {
  expect(readMessage(writeMessage(['revoked', 'locks/a/7-1', '5']).toString())).toEqual(['revoked', 'locks/a/7-1', '5'])
})

it.each(['', 'null', '{}', '5', '[]', '["revoked"]', '["lost",5,"3"]', '["contended","a"]', '["contended","a",5]', '["forgotten","a","5"]', '["revoked","a","5"'])(
  'is no message if it is %s',
  (text) => expect(readMessage(text)).toBeUndefined(),
)
