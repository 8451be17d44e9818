package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/core/vm/program"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"
	"github.com/holiman/uint256"
)

const (
	// skew is the exponent of the distribution of accounts and slots.
	skew = 0.99
	// Each transaction reads so many slots, writes so many others, and pays one account.
	readsOfEach  = 6
	writesOfEach = 2

	gasOfEach = 1_000_000
	gasPrice  = 10
)

var (
	coinbase = common.HexToAddress("0xfe00000000000000000000000000000000000001")
	router   = common.HexToAddress("0xfe00000000000000000000000000000000000002")
	wealth   = new(uint256.Int).Mul(uint256.NewInt(1_000_000), uint256.NewInt(params.Ether))

	cellCode   = cell()
	routerCode = route()
)

// cell is the code of a contract with slots. It reads the slot of the first word, and adds the
// second word to it unless that is 0.
func cell() []byte {
	p := program.New()
	p.Push(0).Op(vm.CALLDATALOAD, vm.DUP1, vm.SLOAD)
	p.Push(32).Op(vm.CALLDATALOAD, vm.DUP1)
	// The jump goes over itself, which has three bytes, and over the STOP.
	p.Push(p.Size()+3+1).Op(vm.JUMPI, vm.STOP)
	p.Jumpdest()
	return p.Op(vm.ADD, vm.SWAP1, vm.SSTORE).Bytes()
}

const itemBytes = 128

// route is the code of a contract that makes calls. An item of its input has an address, the two
// words for that, and a value. If a call fails, all fail.
func route() []byte {
	p := program.New()
	p.Push(0)
	_, begin := p.Jumpdest()
	p.Push(64).Op(vm.DUP2).Push(32).Op(vm.ADD).Push(0).Op(vm.CALLDATACOPY)
	p.Push(0).Push(0).Push(64).Push(0)
	p.Op(vm.DUP5).Push(96).Op(vm.ADD, vm.CALLDATALOAD)
	p.Op(vm.DUP6, vm.CALLDATALOAD, vm.GAS, vm.CALL, vm.ISZERO)
	// There is no destination of jumps at 0.
	p.Push(0).Op(vm.JUMPI)
	p.Push(itemBytes).Op(vm.ADD, vm.DUP1, vm.CALLDATASIZE, vm.GT)
	return p.Push(begin).Op(vm.JUMPI).Bytes()
}

// zipf draws numbers below a bound, the lowest ones most often.
type zipf struct {
	count, zeta, alpha, eta float64
}

func newZipf(count int) *zipf {
	z := &zipf{count: float64(count), alpha: 1 / (1 - skew)}
	for i := 1; i <= count; i++ {
		z.zeta += math.Pow(float64(i), -skew)
	}
	two := 1 + math.Pow(2, -skew)
	z.eta = (1 - math.Pow(2/z.count, 1-skew)) / (1 - two/z.zeta)
	return z
}

func (z *zipf) draw(random *rand.Rand) int {
	u := random.Float64()
	switch scaled := u * z.zeta; {
	case scaled < 1:
		return 0
	case scaled < 1+math.Pow(0.5, skew):
		return 1
	}
	drawn := z.count * math.Pow(z.eta*u-z.eta+1, z.alpha)
	return int(min(drawn, z.count-1))
}

// world is the state before the first block.
type world struct {
	accounts, slots, contracts int
}

// prime spreads numbers over a range that it does not divide.
const prime = 2_654_435_761

func spread(number, count int) int { return int(uint64(number) * prime % uint64(count)) }

func addressOf(kind byte, number int) common.Address {
	hash := crypto.Keccak256(binary.BigEndian.AppendUint64([]byte{kind}, uint64(number)))
	return common.BytesToAddress(hash)
}

func (w *world) account(number int) common.Address  { return addressOf('a', number) }
func (w *world) contract(number int) common.Address { return addressOf('c', number) }

// slot gives the contract of a slot, and its key there. Slots are dealt out to contracts in turn.
func (w *world) slot(number int) (contract int, key common.Hash) {
	return number % w.contracts, common.BigToHash(big.NewInt(int64(number / w.contracts)))
}

func (w *world) value(number int) common.Hash {
	return common.BigToHash(new(big.Int).Lsh(big.NewInt(int64(number+1)), 40))
}

// block has the transactions of one block.
type block struct {
	number   uint64
	messages []*core.Message
	// accesses are all accounts and slots that the transactions come to.
	accesses map[common.Address][]common.Hash
	// reads and writes count different accounts and slots. Of the reads, so many were read by an
	// earlier block as well.
	reads, writes, known int
}

// blocks makes the blocks of a chain. They depend on the world alone.
type blocks struct {
	*world
	random       *rand.Rand
	accountZipf  *zipf
	slotZipf     *zipf
	nonces       map[int]uint64
	number       uint64
	seen         map[uint64]bool
	transactions int
}

func newBlocks(w *world, transactions int) *blocks {
	return &blocks{
		world: w, random: rand.New(rand.NewPCG(1, 2)), accountZipf: newZipf(w.accounts), slotZipf: newZipf(w.slots),
		nonces: make(map[int]uint64), seen: make(map[uint64]bool), transactions: transactions,
	}
}

// Kinds of what a block comes to.
const (
	readAccount uint64 = iota << 60
	readContract
	readSlot
)

// tally counts what a block comes to.
type tally struct {
	*blocks
	block          *block
	touched, wrote map[uint64]bool
}

func (t *tally) touch(id uint64, writes bool) (first bool) {
	if first = !t.touched[id]; first {
		t.touched[id] = true
		t.block.reads++
		if t.seen[id] {
			t.block.known++
		}
		t.seen[id] = true
	}
	if writes && !t.wrote[id] {
		t.wrote[id] = true
		t.block.writes++
	}
	return first
}

func (t *tally) account(number int) common.Address {
	address := t.blocks.account(number)
	if t.touch(readAccount|uint64(number), true) {
		t.block.accesses[address] = nil
	}
	return address
}

// slot draws a slot, and gives the item that comes to it.
func (t *tally) slot(writes bool) []byte {
	number := spread(t.slotZipf.draw(t.random), t.slots)
	at, key := t.world.slot(number)
	contract := t.contract(at)
	// A contract whose slots change has another record, or another root of its storage.
	t.touch(readContract|uint64(at), writes)
	if t.touch(readSlot|uint64(number), writes) {
		t.block.accesses[contract] = append(t.block.accesses[contract], key)
	}
	added := byte(0)
	if writes {
		added = 1
	}
	return item(contract, key, added, 0)
}

func item(to common.Address, slot common.Hash, added, value byte) []byte {
	word := common.LeftPadBytes(to[:], 32)
	word = append(word, slot[:]...)
	return append(word, append(common.LeftPadBytes([]byte{added}, 32), common.LeftPadBytes([]byte{value}, 32)...)...)
}

// next makes the next block.
func (b *blocks) next() *block {
	b.number++
	made := &block{number: b.number, accesses: make(map[common.Address][]common.Hash)}
	t := &tally{blocks: b, block: made, touched: make(map[uint64]bool), wrote: make(map[uint64]bool)}
	for at, address := range []common.Address{coinbase, router} {
		// Numbers above those of all contracts.
		t.touch(readContract|uint64(b.contracts+at), true)
		made.accesses[address] = nil
	}
	for range b.transactions {
		sender := spread(b.accountZipf.draw(b.random), b.accounts)
		from := t.account(sender)
		paid := t.account(spread(b.accountZipf.draw(b.random), b.accounts))
		input := item(paid, common.Hash{}, 0, 1)
		for i := range readsOfEach + writesOfEach {
			input = append(input, t.slot(i >= readsOfEach)...)
		}
		price := uint256.NewInt(gasPrice)
		made.messages = append(made.messages, &core.Message{
			From: from, To: &router, Nonce: b.nonces[sender], Value: new(uint256.Int), GasLimit: gasOfEach,
			GasPrice: price, GasFeeCap: price, GasTipCap: price, Data: input,
		})
		b.nonces[sender]++
	}
	return made
}

// rules are those of Osaka.
func rules(number uint64) params.Rules {
	return params.MergedTestChainConfig.Rules(new(big.Int).SetUint64(number), true, number)
}

// evm makes a machine for the block's transactions.
func (b *block) evm(on *state.StateDB) *vm.EVM {
	random := common.Hash{1}
	return vm.NewEVM(vm.BlockContext{
		CanTransfer: core.CanTransfer, Transfer: core.Transfer,
		GetHash:  func(uint64) common.Hash { return common.Hash{} },
		Coinbase: coinbase, GasLimit: uint64(len(b.messages)) * gasOfEach, BlockNumber: new(big.Int).SetUint64(b.number),
		Time: b.number, Difficulty: new(big.Int), BaseFee: big.NewInt(gasPrice / 2), BlobBaseFee: big.NewInt(1),
		Random: &random,
	}, on, params.MergedTestChainConfig, vm.Config{})
}

// run executes the transactions, one after the other, in go-ethereum's EVM.
func (b *block) run(on *state.StateDB) error {
	evm := b.evm(on)
	defer evm.Release()
	pool := core.NewGasPool(evm.Context.GasLimit)
	for i, message := range b.messages {
		on.SetTxContext(common.Hash{}, i, uint32(i+1))
		result, err := core.ApplyMessage(evm, message, pool)
		if err == nil {
			err = result.Err
		}
		if err == nil {
			err = on.Error()
		}
		if err != nil {
			return fmt.Errorf("transaction %d of block %d: %w", i, b.number, err)
		}
		on.Finalise(rules(b.number))
	}
	return nil
}

// attempt executes one transaction on the state before the block, as if its nonce were right. What
// it writes is dropped, and so are errors, as the right state may be another one.
func (b *block) attempt(i int, on *state.StateDB) {
	evm, message := b.evm(on), b.messages[i]
	defer evm.Release()
	on.SetNonce(message.From, message.Nonce, tracing.NonceChangeUnspecified)
	_, _ = core.ApplyMessage(evm, message, core.NewGasPool(evm.Context.GasLimit))
}

// contractAccount is the account of a contract without slots.
func contractAccount(code []byte) *types.StateAccount {
	return &types.StateAccount{
		Nonce: 1, Balance: wealth, Root: types.EmptyRootHash, CodeHash: crypto.Keccak256(code),
	}
}
