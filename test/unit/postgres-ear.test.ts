/** A connection that listens, and ends at a bad moment. */
import { expect, it } from 'vitest'
import type { PostgresClient } from '../../src/backends/sql/postgres/client.js'
import { PostgresDatabase } from '../../src/backends/sql/postgres/database.js'
import { PostgresSchema } from '../../src/backends/sql/postgres/schema.js'

it('one that is cut while its process is looked up does not count as one that listens', async () => {
  let cut = () => {}
  const client: PostgresClient = {
    // The server has not noticed yet: its process is still there.
    query: async () => {
      cut()
      return '1'
    },
    script: async () => {},
    listen: async (_channel, _onNews, onEnd) => {
      cut = onEnd
      return { pid: 1, close: async () => {} }
    },
    close: async () => {},
  }
  const database = new PostgresDatabase(client, new PostgresSchema(), { migrate: true })
  await expect(database.listen!('me', { onNews: () => {}, onEnd: () => {} })).rejects.toThrow('lost at once')
})
