/**
 * The token that stands for user and password. It is asked for when it is first needed, and again when the server does
 * not know it any more: tokens expire, and some servers forget them when they start again. All who need one at a time
 * share one request.
 */
import { EtcdError } from './errors.js'

export interface Credentials {
  readonly username: string
  readonly password: string
}

export class Auth {
  /** Undefined: has to be asked for. '': none is needed. */
  token: string | undefined
  /** What the server said against user and password. */
  trouble: EtcdError | undefined
  readonly #credentials: Credentials | undefined
  readonly #authenticate: (credentials: Credentials) => Promise<string>
  #obtaining: Promise<void> | undefined

  constructor(credentials: Credentials | undefined, authenticate: (credentials: Credentials) => Promise<string>) {
    this.#credentials = credentials
    this.#authenticate = authenticate
    if (!credentials) this.token = ''
  }

  /** There is a user. */
  get isAsked(): boolean {
    return this.#credentials !== undefined
  }

  obtain(): Promise<void> {
    this.#obtaining ??= this.#obtain().finally(() => (this.#obtaining = undefined))
    return this.#obtaining
  }

  /** This one is not good any more. Whoever is late does not take away a newer one. */
  forget(token: string): void {
    if (this.#credentials && this.token === token) this.token = undefined
  }

  async #obtain(): Promise<void> {
    if (!this.#credentials) return
    try {
      this.token = await this.#authenticate(this.#credentials)
      this.trouble = undefined
    } catch (error) {
      if (isNotEnabled(error)) this.token = ''
      else throw this.#explained(error)
    }
  }

  #explained(error: unknown): unknown {
    if (!(error instanceof EtcdError)) return error
    const { code, reason, transient } = error
    // Whoever needs the token has sent nothing yet.
    if (transient) return new EtcdError(error.message, { code, reason, transient, cause: error })
    const why = reason === 'unauthenticated' ? 'the user or the password is wrong' : error.message
    const message = `etcd lets "${this.#credentials!.username}" not in: ${why}`
    return (this.trouble = new EtcdError(message, { code, reason: 'unauthenticated' }))
  }
}

/** Then it needs no token, and everybody may do everything. */
function isNotEnabled(error: unknown): boolean {
  return error instanceof EtcdError && error.message.includes('authentication is not enabled')
}
