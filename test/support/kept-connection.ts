/** One connection for the questions of a test: made when it is needed, and forgotten once it is cut. */
export class KeptConnection<Connection> {
  readonly #open: (onCut: () => void) => Promise<Connection>
  #connection: Promise<Connection> | undefined

  constructor(open: (onCut: () => void) => Promise<Connection>) {
    this.#open = open
  }

  get(): Promise<Connection> {
    return (this.#connection ??= this.#connect())
  }

  /** It is not closed: whoever still waits for an answer hears of its end from the server. */
  forget(): void {
    this.#connection = undefined
  }

  #connect(): Promise<Connection> {
    const forgetThis = () => {
      if (this.#connection === connecting) this.forget()
    }
    const connecting = this.#open(forgetThis)
    connecting.catch(forgetThis)
    return connecting
  }
}
