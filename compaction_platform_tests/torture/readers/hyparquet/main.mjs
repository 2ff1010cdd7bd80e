// Reads and writes Parquet files with hyparquet and hyparquet-writer: one JSON request per line, one JSON answer per
// line. The canonical form of values is described in docs/torture.md.
import { createHash } from 'node:crypto'
import { createInterface } from 'node:readline'
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet'
import { compressors } from 'hyparquet-compressors'
import { parquetWriteFile } from 'hyparquet-writer'

/** A value whose canonical form is known from its type, with what a writer takes for it. */
class Told {
  constructor(text, raw) {
    this.text = text
    this.raw = raw
  }
}

const time = (value, zeros) => new Told(value === 0n ? 'T0' : `T${value}${'0'.repeat(zeros)}`, value)
const hex = bytes => new Told('x' + Buffer.from(bytes).toString('hex'), bytes)
const parsers = {
  timestampFromMilliseconds: value => time(value, 6),
  timestampFromMicroseconds: value => time(value, 3),
  timestampFromNanoseconds: value => time(value, 0),
  dateFromDays: value => new Told(`D${value}`, value),
  stringFromBytes: hex,
  jsonFromBytes: hex,
  uuidFromBytes: hex
}

const view = new DataView(new ArrayBuffer(8))
function float(value) {
  view.setFloat64(0, value)
  return Number.isNaN(value) ? 'dnan' : 'd' + view.getBigUint64(0).toString(16).padStart(16, '0')
}

function cell(value, isFloat) {
  if (value === null || value === undefined) return '~'
  if (value instanceof Told) return value.text
  if (value instanceof Uint8Array) return 'x' + Buffer.from(value).toString('hex')
  if (typeof value === 'boolean') return value ? 't' : 'f'
  if (typeof value === 'number') {
    return !isFloat && Number.isInteger(value) && !Object.is(value, -0) ? String(value) : float(value)
  }
  if (Array.isArray(value)) return `[${value.map(each => cell(each, isFloat)).join(',')}]`
  if (typeof value === 'object') {
    return `(${Object.entries(value).map(([name, each]) => `${name}:${cell(each, isFloat)}`).join(',')})`
  }
  return String(value)
}

async function rowsOf(file, metadata, columns) {
  return parquetReadObjects({ file, metadata, columns, compressors, parsers, geoparquet: false })
}

async function read({ file: path, cuts, unordered }) {
  const file = await asyncBufferFromFile(path)
  const metadata = await parquetMetadataAsync(file, { geoparquet: false })
  const floats = new Set(metadata.schema.filter(isFloat).map(element => element.name))
  const cells = {}
  const unsupported = {}
  for (const name of topLevel(metadata.schema)) {
    try {
      cells[name] = (await rowsOf(file, metadata, [name])).map(row => cell(row[name], floats.has(name)) + '\n')
    } catch (error) {
      unsupported[name] = String(error)
    }
  }
  const names = Object.keys(cells)
  const reasons = Object.values(unsupported)
  if (names.length === 0 && reasons.length > 0) throw new Error(reasons[0])
  const rows = names.length ? cells[names[0]].length : Number(metadata.num_rows)
  const columns = {}
  if (unordered) {
    for (const name of names) columns[name] = [sumOfRows([cells[name]], rows)]
    columns['*'] = [sumOfRows(Object.values(cells), rows)]
  } else {
    for (const name of names) columns[name] = digests(cells[name], cuts)
  }
  return { rows, columns, unsupported }
}

const isFloat = element =>
  ['FLOAT', 'DOUBLE'].includes(element.type) ||
  element.logical_type?.type === 'FLOAT16' || element.converted_type === 'DECIMAL'

function topLevel(schema) {
  const names = []
  let number = 1
  const skip = () => {
    const children = schema[number++].num_children ?? 0
    for (let child = 0; child < children; child++) skip()
  }
  while (number < schema.length) {
    names.push(schema[number].name)
    skip()
  }
  return names
}

function digests(cells, cuts) {
  let start = 0
  return (cuts ?? [cells.length]).map(cut => {
    const digest = createHash('sha256').update(cells.slice(start, start + cut).join(''))
    start += cut
    return digest.digest('hex').slice(0, 32)
  })
}

/** A digest of rows in any order: those of several files add up to that of all their rows. */
function sumOfRows(columns, rows) {
  let sum = 0n
  for (let row = 0; row < rows; row++) {
    const digest = createHash('sha256')
    for (const cells of columns) digest.update(cells[row])
    sum += BigInt('0x' + digest.digest('hex').slice(0, 32))
  }
  return BigInt.asUintN(128, sum).toString(16).padStart(32, '0')
}

/** Read flat columns with this library and write them with this library. */
async function write({ file: path, to, row_group_rows: rowGroupSize, codec, dictionary }) {
  const file = await asyncBufferFromFile(path)
  const metadata = await parquetMetadataAsync(file, { geoparquet: false })
  const rows = await rowsOf(file, metadata)
  const raw = value => (value instanceof Told ? value.raw : value)
  const columnData = topLevel(metadata.schema).map(name => ({ name, data: rows.map(row => raw(row[name])) }))
  const schema = metadata.schema.map(({ field_id: _, ...element }) => element)
  const options = dictionary === false ? { dictionarySize: 0 } : {}
  parquetWriteFile({
    filename: to, columnData, schema, rowGroupSize, codec: codec === 'none' ? 'UNCOMPRESSED' : 'SNAPPY', ...options
  })
  return {}
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  let answer
  try {
    answer = await (request.do === 'write' ? write(request) : read(request))
  } catch (error) {
    answer = { error: String(error) }
  }
  process.stdout.write(JSON.stringify(answer, (_, value) => (typeof value === 'bigint' ? Number(value) : value)) + '\n')
}
