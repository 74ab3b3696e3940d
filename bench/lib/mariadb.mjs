/** How a private MariaDB is made, started and asked. */
import { join } from 'node:path'
import { createConnection } from 'mysql2/promise'

const SUPERUSER = 'root'
const DATABASE = 'bench'

export const mariadb = {
  name: 'mariadb',
  program: 'mariadbd',
  stopSignal: 'SIGTERM',
  url: (port) => `mysql://${SUPERUSER}@127.0.0.1:${port}/${DATABASE}`,

  install(folder) {
    const how = ['--no-defaults', '--skip-test-db', '--auth-root-authentication-method=normal', '--skip-name-resolve']
    return ['mariadb-install-db', [...how, `--datadir=${join(folder, 'data')}`]]
  },

  arguments(port, folder) {
    // The socket is relative to the data, since a path could be too long for one.
    const settings = { datadir: join(folder, 'data'), port, 'bind-address': '127.0.0.1', socket: 'mariadb.sock', 'pid-file': 'mariadb.pid' }
    return ['--no-defaults', '--skip-name-resolve', ...Object.entries(settings).map(([name, value]) => `--${name}=${value}`)]
  },

  async connect(port) {
    const connection = await createConnection({ host: '127.0.0.1', port, user: SUPERUSER })
    connection.on('error', () => {})
    return {
      version: async () => (await connection.query('SELECT VERSION() AS version'))[0][0].version.split('-')[0],
      empty: async () => {
        await connection.query(`DROP DATABASE IF EXISTS ${DATABASE}`)
        await connection.query(`CREATE DATABASE ${DATABASE}`)
      },
      end: () => connection.end()
    }
  }
}
