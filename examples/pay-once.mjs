/** A payment is asked for again and again, and one of those who make it dies in the middle: the bank is charged once. */
import { connect, key } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')

/** A bank that knows a payment again by its id, as banks do. */
const bank = {
  charged: new Map(),
  async charge(paymentId, amount) {
    if (!this.charged.has(paymentId)) this.charged.set(paymentId, amount)
    return { paymentId, amount }
  }
}
/** The payments table: it refuses whoever was overtaken. */
const payments = new Map()
function record(paymentId, receipt, fence) {
  const last = payments.get(paymentId)
  if (last && last.fence > fence) throw new Error('overtaken')
  payments.set(paymentId, { receipt, fence })
}

/** `crash`: after the bank was charged, and before that was written down. */
async function pay(paymentId, amount, { crash = false } = {}) {
  return locks.withLock(key`payment:${paymentId}`, async ({ fence, signal }) => {
    const done = payments.get(paymentId)
    if (done) return { ...done.receipt, again: true }
    const receipt = await bank.charge(paymentId, amount)
    if (crash) throw new Error('the process has died')
    signal.throwIfAborted()
    record(paymentId, receipt, fence)
    return receipt
  })
}

const first = await pay('order-1', 42, { crash: true }).catch((error) => error.message)
console.log(`first: ${first}`)
const clicks = await Promise.all(Array.from({ length: 5 }, () => pay('order-1', 42)))
console.log(`then: paid ${clicks.filter(({ again }) => !again).length} time, told again ${clicks.filter(({ again }) => again).length} times`)
console.log(`the bank was charged: ${[...bank.charged.values()].join(', ')}`)
await locks.close()
