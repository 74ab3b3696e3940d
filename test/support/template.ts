/** A folder that takes long to make is made once in a test run, and copied. */
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { makeFolder, removeAtEnd } from './processes.js'
import { giveAway } from './unprivileged.js'

/** Neither `to` exists yet nor what `make` is given: it has to make it. */
export async function copyOf(name: string, to: string, make: (folder: string) => Promise<void>): Promise<void> {
  const template = join(shelf(), name)
  if (!existsSync(template)) await put(template, make)
  // Unlike fs.cp it keeps the owner, and is quick.
  await promisify(execFile)('cp', ['-Rp', template, to])
}

async function put(template: string, make: (folder: string) => Promise<void>): Promise<void> {
  const draft = makeFolder('draft')
  try {
    giveAway(draft)
    await make(join(draft, 'made'))
    renameSync(join(draft, 'made'), template)
  } catch (error) {
    // Somebody else was quicker.
    if (!existsSync(template)) throw error
  } finally {
    rmSync(draft, { recursive: true, force: true })
  }
}

let ownShelf: string | undefined

function shelf(): string {
  const ofRun = process.env['HOLDFAST_TEST_DIR']
  if (ofRun !== undefined) {
    const folder = join(ofRun, 'templates')
    mkdirSync(folder, { recursive: true })
    return folder
  }
  ownShelf ??= makeFolder('templates')
  removeAtEnd(ownShelf)
  return ownShelf
}
