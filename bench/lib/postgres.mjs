/** How a private PostgreSQL is made, started and asked. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'

const SUPERUSER = 'postgres'
const url = (port) => `postgres://${SUPERUSER}@127.0.0.1:${port}/postgres`

export const postgres = {
  name: 'postgres',
  program: 'postgres',
  // SIGTERM would wait until all clients are gone.
  stopSignal: 'SIGINT',
  url,

  install(folder) {
    const how = ['--no-sync', '--no-instructions', '--locale=C', '--encoding=UTF8', '--auth=trust', '--username', SUPERUSER]
    return ['initdb', [...how, '--pgdata', join(folder, 'data')]]
  },

  arguments(port, folder) {
    writeFileSync(join(folder, 'data/pg_hba.conf'), 'host all all 127.0.0.1/32 trust\n')
    const settings = { port, listen_addresses: '127.0.0.1', unix_socket_directories: '' }
    return ['-D', join(folder, 'data'), ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
  },

  async connect(port) {
    const client = new pg.Client({ connectionString: url(port) })
    client.on('error', () => {})
    await client.connect()
    return {
      version: async () => (await client.query('SHOW server_version')).rows[0].server_version.split(' ')[0],
      // The checkpoint, so that nobody writes what another has left.
      empty: async () => {
        await client.query('DROP SCHEMA public CASCADE; CREATE SCHEMA public')
        await client.query('CHECKPOINT')
      },
      end: () => client.end()
    }
  }
}
