'use strict'
// What a client program and the driver say to each other: lines on standard input and output (see tests/README.md).

const readline = require('node:readline')
const assert = require('node:assert/strict')

/** How long any single wait of a case may take before the case fails. */
const STEP_MS = 60_000

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

function say(line) {
  process.stdout.write(line.replace(/\s+/g, ' ').trim() + '\n')
}

/** Asks the driver to kill -9 the broker and to start it again; resolves when it answers. */
async function killBroker() {
  say('KILL')
  const { value } = await answers.next()
  assert.equal(value, 'RESTARTED')
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function waitUntil(what, condition) {
  const deadline = Date.now() + STEP_MS
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited ${STEP_MS / 1000} s for: ${what}`)
    await pause(5)
  }
}

function expectEqual(what, found, expected) {
  try {
    assert.deepEqual(found, expected)
  } catch {
    const cut = (value) => {
      const text = String(JSON.stringify(value))
      return text.length > 300 ? `${text.slice(0, 150)}…${text.slice(-150)}` : text
    }
    throw new Error(`${what}: found ${cut(found)} where ${cut(expected)} was expected`)
  }
}

/** Runs the named cases in order; each resolves to the detail of its result line. */
async function run(version, cases, names) {
  say(`VERSION ${version}`)
  for (const name of names) {
    let result
    try {
      result = `PASS ${await cases[name]()}`
    } catch (error) {
      console.error(error)
      result = `FAIL ${error.name}: ${error.message}`
    }
    say(`CASE ${name} ${result}`)
  }
  // Through a callback, so that a piped standard output is written first.
  process.stdout.write('', () => process.exit(0))
}

module.exports = { killBroker, pause, waitUntil, expectEqual, run }
