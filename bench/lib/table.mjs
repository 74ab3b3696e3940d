/** Tables, for the terminal and for Markdown: the same text. What is text stands to the left, numbers to the right. */

export function table(head, rows, isText = (column) => column === 0) {
  const all = [head, ...rows].map((row) => row.map(String))
  const widths = head.map((_, column) => Math.max(3, ...all.map((row) => width(row[column]))))
  const line = (cells) => `| ${cells.map((cell, column) => pad(cell, widths[column], !isText(column))).join(' | ')} |`
  const dashes = widths.map((size, column) => `${'-'.repeat(size + 1)}${isText(column) ? '-' : ':'}`)
  return [line(all[0]), `|${dashes.join('|')}|`, ...all.slice(1).map(line)].join('\n')
}

const width = (text) => [...text].length

function pad(text, size, right) {
  const blanks = ' '.repeat(Math.max(0, size - width(text)))
  return right ? blanks + text : text + blanks
}
