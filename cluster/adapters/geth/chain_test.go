package geth

import (
	"crypto/ecdsa"
	"math"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/consensus"
	"github.com/ethereum/go-ethereum/consensus/beacon"
	"github.com/ethereum/go-ethereum/consensus/ethash"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/ethereum/go-ethereum/triedb"
)

var (
	payer, _  = crypto.HexToECDSA("b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291")
	payerAddr = crypto.PubkeyToAddress(payer.PublicKey)
	// counter counts its calls in slot 0. Each call n writes slot 256+n, and empties slot 253+n.
	counter     = common.HexToAddress("0xc0ffee0000000000000000000000000000000001")
	counterCode = common.FromHex("6000546001018060005561010001808055600090600390035500")
)

// chainOf is a generated chain.
type chainOf struct {
	genesis *core.Genesis
	config  *params.ChainConfig
	engine  consensus.Engine
	first   *types.Block
	blocks  []*types.Block
}

// merged has the rules from Cancun on, and worked has the rules from before the merge.
func merged() *params.ChainConfig {
	config, zero := *params.AllEthashProtocolChanges, uint64(0)
	config.TerminalTotalDifficulty = common.Big0
	config.ShanghaiTime, config.CancunTime = &zero, &zero
	config.BlobScheduleConfig = params.DefaultBlobSchedule
	return &config
}

func worked() *params.ChainConfig {
	config := *params.AllEthashProtocolChanges
	config.TerminalTotalDifficulty = big.NewInt(math.MaxInt64)
	return &config
}

func difficulty(config *params.ChainConfig) *big.Int {
	if config.TerminalTotalDifficulty.Sign() == 0 {
		return common.Big0
	}
	return big.NewInt(131_072)
}

// generate makes a chain: payments, calls of a contract that writes and deletes, new contracts. Two
// chains with different salts have the same blocks up to the fork.
func generate(t testing.TB, config *params.ChainConfig, length, fork int, salt byte) *chainOf {
	t.Helper()
	return generateWith(t, config, length, func(i int, b *core.BlockGen) {
		if i%5 == 4 {
			b.SetCoinbase(common.Address{0xfe, byte(i)})
		}
		if i >= fork {
			b.SetExtra([]byte{salt})
			b.AddTx(pay(t, config, b, common.Address{0xaa, salt}, nil))
		}
		b.AddTx(pay(t, config, b, common.Address{1, byte(i)}, nil))
		b.AddTx(pay(t, config, b, counter, nil))
		if i%3 == 0 {
			// A contract whose code is its number.
			code := []byte{0x60, byte(i), 0x60, 0x00, 0x53, 0x60, 0x01, 0x60, 0x00, 0xf3}
			b.AddTx(create(t, config, b, code))
		}
	})
}

// generateWith makes a chain of blocks that a function fills.
func generateWith(t testing.TB, config *params.ChainConfig, length int, fill func(int, *core.BlockGen)) *chainOf {
	t.Helper()
	g := &chainOf{config: config, engine: beacon.New(ethash.NewFaker())}
	g.genesis = &core.Genesis{
		Config: config, GasLimit: 30_000_000, BaseFee: big.NewInt(params.InitialBaseFee), Difficulty: difficulty(config),
		Alloc: types.GenesisAlloc{
			payerAddr: {Balance: new(big.Int).Mul(big.NewInt(1_000_000), big.NewInt(params.Ether))},
			counter: {
				Code: counterCode, Balance: common.Big0,
				Storage: map[common.Hash]common.Hash{{31: 7}: {31: 9}},
			},
			{9}: {Balance: big.NewInt(1), Nonce: 3},
		},
	}
	database := rawdb.NewMemoryDatabase()
	tries := triedb.NewDatabase(database, triedb.HashDefaults)
	g.first = must(g.genesis.Commit(database, tries, nil))(t)
	t.Cleanup(func() { _ = tries.Close() })
	g.blocks, _ = core.GenerateChain(config, g.first, g.engine, database, length, fill)
	return g
}

func sign(
	t testing.TB, config *params.ChainConfig, b *core.BlockGen, key *ecdsa.PrivateKey, data types.TxData,
) *types.Transaction {
	t.Helper()
	signer := types.MakeSigner(config, b.Number(), b.Timestamp())
	return must(types.SignNewTx(key, signer, data))(t)
}

func pay(
	t testing.TB, config *params.ChainConfig, b *core.BlockGen, to common.Address, data []byte,
) *types.Transaction {
	t.Helper()
	value := big.NewInt(1)
	if to == counter {
		value = common.Big0
	}
	return sign(t, config, b, payer, &types.LegacyTx{
		Nonce: b.TxNonce(payerAddr), To: &to, Value: value, Gas: 200_000, GasPrice: b.BaseFee(), Data: data,
	})
}

func create(t testing.TB, config *params.ChainConfig, b *core.BlockGen, code []byte) *types.Transaction {
	t.Helper()
	return sign(t, config, b, payer, &types.LegacyTx{
		Nonce: b.TxNonce(payerAddr), Value: common.Big0, Gas: 200_000, GasPrice: b.BaseFee(), Data: code,
	})
}

// These methods are the chain that a StateProcessor asks for.
func (g *chainOf) Config() *params.ChainConfig  { return g.config }
func (g *chainOf) Engine() consensus.Engine     { return g.engine }
func (g *chainOf) CurrentHeader() *types.Header { return g.blocks[len(g.blocks)-1].Header() }
func (g *chainOf) GetHeader(hash common.Hash, _ uint64) *types.Header {
	return g.GetHeaderByHash(hash)
}
func (g *chainOf) GetHeaderByNumber(number uint64) *types.Header {
	return g.block(int(number)).Header()
}
func (g *chainOf) GetHeaderByHash(hash common.Hash) *types.Header {
	for number := range len(g.blocks) + 1 {
		if g.block(number).Hash() == hash {
			return g.block(number).Header()
		}
	}
	return nil
}

// block gives a block by its number.
func (g *chainOf) block(number int) *types.Block {
	if number == 0 {
		return g.first
	}
	return g.blocks[number-1]
}

// local is a state database of go-ethereum alone, with which the ledger is compared.
func local(t testing.TB) (*triedb.Database, *state.MPTDatabase) {
	t.Helper()
	var disk ethdb.Database = rawdb.NewMemoryDatabase()
	tries := triedb.NewDatabase(disk, &triedb.Config{Preimages: true, HashDB: triedb.HashDefaults.HashDB})
	t.Cleanup(func() { _ = tries.Close() })
	return tries, state.NewMPTDatabase(tries, nil)
}

// begin commits the first block to a database.
func (g *chainOf) begin(t testing.TB, database state.Database) {
	t.Helper()
	first := must(state.New(types.EmptyRootHash, database))(t)
	if err := allocate(first, g.genesis.Alloc); err != nil {
		t.Fatal(err)
	}
	if root := must(first.Commit(params.Rules{}, 0))(t); root != g.first.Root() {
		t.Fatalf("the first block has root %s, not %s", root, g.first.Root())
	}
}

// run executes a block on the state of its parent, as a node does, and commits it.
func (g *chainOf) run(t testing.TB, database state.Database, number int) {
	t.Helper()
	block := g.block(number)
	on := must(state.New(g.block(number-1).Root(), database))(t)
	result := must(core.NewStateProcessor(g).Process(limited(t), block, on, nil, nil, vm.Config{}, nil))(t)
	if receipts := types.DeriveSha(result.Receipts, trie.NewStackTrie(nil)); receipts != block.ReceiptHash() {
		t.Fatalf("block %d has other receipts", number)
	}
	rules := g.config.Rules(block.Number(), block.Difficulty().Sign() == 0, block.Time())
	if root := must(on.Commit(rules, block.NumberU64()))(t); root != block.Root() {
		t.Fatalf("block %d leads to %s, not %s", number, root, block.Root())
	}
}
