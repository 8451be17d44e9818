package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"slices"

	"coppice.dev/sdk/verify"
)

// keyOf returns the key of a member. It follows from the names of ledger and member, so each run
// has the same keys. They are no secret.
func keyOf(ledger, member string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("coppice load test\x00" + ledger + "\x00" + member))
	return ed25519.NewKeyFromSeed(seed[:])
}

// seen is the part of a request about the cluster and its root log.
type seen struct {
	Cluster []byte `json:"cluster"`
	Epoch   uint64 `json:"epoch,string"`
	// Checkpoint is a signed note.
	Checkpoint []byte `json:"checkpoint"`
}

func (s *seen) fill(signed *verify.SignedRequest) error {
	checkpoint, err := verify.ClaimedCheckpoint(s.Checkpoint)
	if err != nil {
		return err
	}
	if len(s.Cluster) != len(verify.ClusterID{}) {
		return errors.New("an id of a cluster has 16 bytes")
	}
	signed.Cluster, signed.Epoch = verify.ClusterID(s.Cluster), s.Epoch
	signed.SeenSize, signed.SeenRoot = checkpoint.Size, checkpoint.Root
	return nil
}

// signedRequest is an AppendRequest, with the SHA-256 of what was signed.
type signedRequest struct {
	Signed    []byte `json:"signed"`
	Signature []byte `json:"signature"`
	Items     []item `json:"items"`
	Hash      []byte `json:"hash"`
}

// toFound describes a ledger that is to be founded. The first member is its owner.
type toFound struct {
	seen
	Name    string   `json:"name"`
	Spread  bool     `json:"spread"`
	Members []string `json:"members"`
}

// founding makes the request that founds a ledger.
func founding(text string) (string, error) {
	wanted, err := read[toFound]([]byte(text))
	if err != nil {
		return "", err
	}
	if len(wanted.Members) == 0 {
		return "", errors.New("a ledger has at least one member")
	}
	founding := verify.Founding{Name: wanted.Name, Spread: wanted.Spread}
	for at, name := range wanted.Members {
		grant := verify.Grant{Name: name, Roles: verify.RoleWriter | verify.RoleReader}
		if at == 0 {
			grant.Roles |= verify.RoleOwner
		}
		copy(grant.Key[:], keyOf(wanted.Name, name).Public().(ed25519.PublicKey))
		founding.Members = append(founding.Members, grant)
	}
	payload, err := founding.Encode()
	if err != nil {
		return "", err
	}
	envelope, err := sealed(payload, nil)
	if err != nil {
		return "", err
	}
	signed := verify.SignedRequest{Member: verify.MemberIDOf(wanted.Members[0]), Number: 1}
	if err := wanted.fill(&signed); err != nil {
		return "", err
	}
	items := []item{{Kind: verify.JournalFounding, Envelope: envelope}}
	return signedBy(keyOf(wanted.Name, wanted.Members[0]), &signed, items)
}

// toAppend has the journals of a request, and its place.
type toAppend struct {
	seen
	// Name is that of the ledger.
	Name     string  `json:"name"`
	Ledger   []byte  `json:"ledger"`
	Member   string  `json:"member"`
	Lane     uint8   `json:"lane"`
	Number   uint64  `json:"number,string"`
	Journals []draft `json:"journals"`
}

type draft struct {
	Payload []byte   `json:"payload"`
	Clues   [][]byte `json:"clues"`
}

// request makes a request for journals of a member. Each of them has a nonce of its own, so two
// requests never have the same bytes.
func request(text string) (string, error) {
	wanted, err := read[toAppend]([]byte(text))
	if err != nil {
		return "", err
	}
	signed := verify.SignedRequest{Member: verify.MemberIDOf(wanted.Member), Lane: wanted.Lane, Number: wanted.Number}
	if signed.Ledger, err = ledgerID(wanted.Ledger); err != nil {
		return "", err
	}
	if err := wanted.fill(&signed); err != nil {
		return "", err
	}
	items := make([]item, len(wanted.Journals))
	for at, draft := range wanted.Journals {
		items[at].Kind = verify.JournalData
		if items[at].Envelope, err = sealed(draft.Payload, draft.Clues); err != nil {
			return "", err
		}
	}
	return signedBy(keyOf(wanted.Name, wanted.Member), &signed, items)
}

func sealed(payload []byte, clues [][]byte) ([]byte, error) {
	envelope := verify.Envelope{Clues: clues, Payload: payload}
	// Never fails: the runtime ends the process if there is no randomness.
	_, _ = rand.Read(envelope.Nonce[:])
	return envelope.Encode()
}

func signedBy(key ed25519.PrivateKey, signed *verify.SignedRequest, items []item) (string, error) {
	over := make([]verify.Item, len(items))
	for at, item := range items {
		over[at] = verify.Item{Kind: item.Kind, Envelope: item.Envelope}
	}
	message, err := signed.Over(over)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(message)
	return written(signedRequest{
		Signed: message, Signature: ed25519.Sign(key, message), Items: items, Hash: hash[:],
	})
}

// laneOf is a lane in the record of a member.
type laneOf struct {
	Record []byte `json:"record"`
	Lane   uint8  `json:"lane"`
}

// laneEnd is the newest request of a lane. Its number is 0 if there is none.
type laneEnd struct {
	Number   uint64 `json:"number,string"`
	FirstJSN uint64 `json:"firstJsn,string"`
}

// newest returns the newest request of a lane.
func newest(text string) (string, error) {
	asked, err := read[laneOf]([]byte(text))
	if err != nil {
		return "", err
	}
	member, err := verify.DecodeMember(asked.Record)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(member.Lanes, func(end verify.LaneEnd) bool { return end.Lane == asked.Lane })
	if at < 0 {
		return written(laneEnd{})
	}
	return written(laneEnd{Number: member.Lanes[at].Number, FirstJSN: member.Lanes[at].FirstJSN})
}

// author returns the hash of the request that has made the journal of an answer.
func author(text string) (string, error) {
	journal, err := read[journal]([]byte(text))
	if err != nil {
		return "", err
	}
	leaf, err := verify.DecodeLeaf(journal.Leaf)
	if err != nil {
		return "", err
	}
	return written(leaf.Request[:])
}
