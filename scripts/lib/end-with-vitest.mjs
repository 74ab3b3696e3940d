/** Loaded into each of vitest's workers, which otherwise outlive a vitest that was stopped in the middle of a test. */
process.once('disconnect', () => process.exit(1))
