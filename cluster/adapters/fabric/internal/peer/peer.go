// Package peer is the part of a Fabric peer that has to do with state: the transaction manager of a
// channel over any state database. The demonstration and the benchmark use it.
package peer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hyperledger/fabric-lib-go/common/metrics/disabled"
	"github.com/hyperledger/fabric-protos-go-apiv2/common"
	"github.com/hyperledger/fabric-protos-go-apiv2/peer"
	"github.com/hyperledger/fabric/core/ledger"
	"github.com/hyperledger/fabric/core/ledger/kvledger/bookkeeping"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/privacyenabledstate"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/txmgr"
	"github.com/hyperledger/fabric/core/ledger/pvtdatapolicy"
	"github.com/hyperledger/fabric/protoutil"
	"google.golang.org/protobuf/proto"
)

// Peer has the transaction manager of a channel.
type Peer struct {
	*txmgr.LockBasedTxMgr
	channel string
	books   *bookkeeping.Provider
	states  *privacyenabledstate.DBProvider
}

// chaincodes tells of no chaincode: none has private data.
type chaincodes struct {
	ledger.DeployedChaincodeInfoProvider
}

func (chaincodes) Namespaces() []string { return nil }

// Open opens a channel. Fabric's own books are in a directory, and the state in a state database,
// or in goleveldb in that directory if the provider is nil.
func Open(directory, channel string, states statedb.VersionedDBProvider) (*Peer, error) {
	books, err := bookkeeping.NewProvider(filepath.Join(directory, "books"))
	if err != nil {
		return nil, err
	}
	p := &Peer{channel: channel, books: books}
	// This is the one place where a state database is chosen.
	config := &privacyenabledstate.StateDBConfig{
		StateDBConfig: &ledger.StateDBConfig{}, LevelDBPath: filepath.Join(directory, "goleveldb"),
	}
	p.states, err = privacyenabledstate.NewDBProvider(books, &disabled.Provider{}, nil, config, nil)
	if err != nil {
		books.Close()
		return nil, err
	}
	if states != nil {
		p.states.VersionedDBProvider.Close()
		p.states.VersionedDBProvider = states
	}
	if err := p.open(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Peer) open() error {
	database, err := p.states.GetDBHandle(p.channel, nil)
	if err != nil {
		return err
	}
	p.LockBasedTxMgr, err = txmgr.NewLockBasedTxMgr(&txmgr.Initializer{
		LedgerID: p.channel, DB: database, BookkeepingProvider: p.books, CCInfoProvider: chaincodes{},
		BtlPolicy: pvtdatapolicy.ConstructBTLPolicy(nil),
		HashFunc:  func(data []byte) ([]byte, error) { sum := sha256.Sum256(data); return sum[:], nil },
	})
	return err
}

// Close ends the peer, and closes its state database.
func (p *Peer) Close() {
	if p.LockBasedTxMgr != nil {
		p.Shutdown()
	}
	p.states.Close()
	p.books.Close()
}

// Block makes a block of transactions, each of which has the results of a simulation.
func (p *Peer) Block(number uint64, results [][]byte) (*common.Block, error) {
	block := protoutil.NewBlock(number, nil)
	for i, result := range results {
		envelope, err := p.envelope(fmt.Sprintf("%d-%d", number, i), result)
		if err != nil {
			return nil, err
		}
		block.Data.Data = append(block.Data.Data, envelope)
	}
	protoutil.InitBlockMetadata(block)
	flags := make([]byte, len(results))
	for i := range flags {
		flags[i] = byte(peer.TxValidationCode_VALID)
	}
	block.Metadata.Metadata[common.BlockMetadataIndex_TRANSACTIONS_FILTER] = flags
	return block, nil
}

// envelope makes a transaction without signatures, which the transaction manager does not look at.
func (p *Peer) envelope(id string, result []byte) ([]byte, error) {
	var all []error
	encode := func(message proto.Message) []byte {
		encoded, err := proto.Marshal(message)
		all = append(all, err)
		return encoded
	}
	header := &common.ChannelHeader{
		Type:      int32(common.HeaderType_ENDORSER_TRANSACTION),
		ChannelId: p.channel,
		TxId:      id,
	}
	response := &peer.ProposalResponsePayload{
		Extension: encode(&peer.ChaincodeAction{Results: result}),
	}
	action := &peer.ChaincodeActionPayload{
		Action: &peer.ChaincodeEndorsedAction{ProposalResponsePayload: encode(response)},
	}
	transaction := &peer.Transaction{Actions: []*peer.TransactionAction{{Payload: encode(action)}}}
	payload := &common.Payload{
		Header: &common.Header{
			ChannelHeader:   encode(header),
			SignatureHeader: encode(&common.SignatureHeader{}),
		},
		Data: encode(transaction),
	}
	envelope := encode(&common.Envelope{Payload: encode(payload)})
	return envelope, errors.Join(all...)
}

// CommitBlock validates a block, writes what is valid of it, and counts the valid transactions.
func (p *Peer) CommitBlock(block *common.Block) (valid int, err error) {
	if _, _, _, err := p.ValidateAndPrepare(&ledger.BlockAndPvtData{Block: block}, true); err != nil {
		return 0, err
	}
	for _, code := range block.Metadata.Metadata[common.BlockMetadataIndex_TRANSACTIONS_FILTER] {
		if code == byte(peer.TxValidationCode_VALID) {
			valid++
		}
	}
	return valid, p.Commit()
}
