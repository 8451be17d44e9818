// Accounts, a few of which are active. A payment reads two, and writes both on the condition that
// nobody changed them. The sum of all balances stays constant.
import { below, keyOf, textOf, textValue } from '../lib/keys.js';
import { invariant } from '../lib/ledger.js';
import { paced } from '../lib/plan.js';
import { conditionally, fill } from './records.js';

const OPENING = 1000;
const AMOUNT_MAX = 100;
const AUDIT_KEYS = 1000;

export class Accounts {
  constructor(ledger, { ACCOUNTS, ACTIVE }) {
    this.ledger = ledger;
    this.count = ACCOUNTS;
    this.active = Math.max(2, Math.round(ACCOUNTS * ACTIVE));
    this.set = `k6/accounts/${ACCOUNTS}`;
  }

  key(number) {
    return keyOf(`${this.set}/${number}`);
  }

  fill() {
    fill(this.ledger, this.set, this.count, 16, (number) => `${this.set}/${number}`, () => textValue(`${OPENING}`));
  }

  pay() {
    const payer = below(this.active);
    const payee = (payer + 1 + below(this.active - 1)) % this.active;
    const keys = [this.key(payer), this.key(payee)];
    return this.ledger.measured('payment', () => conditionally(this.ledger, keys, (records) => {
      const [from, to] = records.map(({ value }) => Number(textOf(value)));
      const amount = Math.min(from, 1 + below(AMOUNT_MAX));
      return [textValue(`${from - amount}`), textValue(`${to + amount}`)];
    }));
  }

  // The sum over all accounts, all read at one version.
  audit() {
    let sum = 0;
    let at = null;
    for (let from = 0; from < this.count; from += AUDIT_KEYS) {
      const keys = [];
      for (let number = from; number < Math.min(this.count, from + AUDIT_KEYS); number++) keys.push(this.key(number));
      const { records, readAt } = this.ledger.read(keys, { at });
      at = at || readAt;
      for (const { value } of records) sum += Number(textOf(value));
    }
    invariant(sum === this.count * OPENING, `the accounts hold ${sum} in all, not ${this.count * OPENING}`);
  }
}

export function payment(ledger, values) {
  const accounts = new Accounts(ledger, values);
  return {
    ops: { payment: 'write' },
    scenarios: { main: paced(values) },
    setup: () => accounts.fill(),
    main: () => accounts.pay(),
    teardown: () => accounts.audit(),
  };
}
