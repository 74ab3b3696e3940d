/** Turns "runs this function under the lock" into a hold: resolves, once it is held, with the function that ends it. */
export function holdInside(using) {
  return new Promise((resolve, reject) => {
    let letGo
    const until = new Promise((done) => (letGo = done))
    const over = using(() => {
      resolve(() => {
        letGo()
        return over
      })
      return until
    })
    over.catch(reject)
  })
}
