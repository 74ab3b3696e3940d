/** What goes on, on stderr: one line that changes on a terminal, one line each elsewhere. */
export class Progress {
  #total
  #done = 0
  #startedAt = performance.now()
  #live = process.stderr.isTTY

  constructor(total) {
    this.#total = total
  }

  now(text) {
    if (this.#live) process.stderr.write(`\r\x1b[K${this.#head()} ${text}`.slice(0, process.stderr.columns ?? 120))
  }

  done(text) {
    this.#done++
    if (this.#live) this.now(text)
    else process.stderr.write(`${this.#head()} ${text}\n`)
  }

  end() {
    if (this.#live) process.stderr.write('\r\x1b[K')
  }

  #head() {
    const elapsedS = (performance.now() - this.#startedAt) / 1000
    const leftS = this.#done < 3 ? undefined : (elapsedS / this.#done) * (this.#total - this.#done)
    const left = leftS < 90 ? `${Math.round(leftS)} s` : `${Math.round(leftS / 60)} min`
    return `[${this.#done}/${this.#total}${leftS === undefined ? '' : `, ${left} left`}]`
  }
}
