package coppice

import (
	"bytes"
	"context"
	"errors"
	"iter"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// LedgerID names a ledger of members.
type LedgerID = verify.LedgerID

// LedgerInfo describes a ledger of members in one version.
type LedgerInfo struct {
	ID LedgerID
	verify.LedgerState
	// Founding is the payload of journal 0: the ledger's name, its rules and its first members.
	Founding *verify.Founding
	// ReadAt is the version that was read.
	ReadAt Stamp
	// Proof is the proof file of name, state and founding. An unverified client gets none.
	Proof []byte
}

// LedgerMark is the size and the root of a ledger's list at one time. Keep it: journals that are
// read later can be proven to continue the list.
type LedgerMark struct {
	Size uint64
	Root verify.Digest
}

// Mark is the size and the root of the ledger's list.
func (l *LedgerInfo) Mark() LedgerMark { return LedgerMark{Size: l.Size, Root: l.Root} }

func named(name string) *v1.LedgerName {
	return &v1.LedgerName{Which: &v1.LedgerName_Name{Name: name}}
}

func identified(ledger LedgerID) *v1.LedgerName {
	return &v1.LedgerName{Which: &v1.LedgerName_Id{Id: ledger[:]}}
}

// FindLedger describes the ledger of members with a name. The proof shows whose name that is.
func (c *Client) FindLedger(ctx context.Context, name string, read *Read) (*LedgerInfo, error) {
	return c.describe(ctx, named(name), verify.LedgerNameKey(name), read)
}

// DescribeLedger describes a ledger of members.
func (c *Client) DescribeLedger(ctx context.Context, ledger LedgerID, read *Read) (*LedgerInfo, error) {
	info, err := c.describe(ctx, identified(ledger), nil, read)
	if err == nil && info.ID != ledger {
		return nil, distrust("DescribeLedger", "the answer is about another ledger")
	}
	return info, err
}

// recordOptions asks for a proof that has the values, which the answer repeats.
func (c *Client) recordOptions(read *Read) *v1.ReadOptions {
	options := c.readOptions(read)
	options.ValuesInProof = false
	return options
}

// describe asks for a ledger, by the key of its name or by its id.
func (c *Client) describe(ctx context.Context, which *v1.LedgerName, nameKey []byte, read *Read) (*LedgerInfo, error) {
	read, err := c.settled(ctx, "DescribeLedger", read)
	if err != nil {
		return nil, err
	}
	k := c.known()
	request := &v1.DescribeLedgerRequest{Ledger: which, Read: c.recordOptions(read)}
	answer, err := invoke(ctx, c, "DescribeLedger", safe, request, v1.LedgerClient.DescribeLedger)
	if err != nil {
		return nil, err
	}
	info, err := infoOf(answer)
	if err == nil && c.trust != nil {
		err = c.checkInfo(ctx, k, nameKey, read, info, answer.Founding)
	}
	if err != nil {
		return nil, distrusted("DescribeLedger", err)
	}
	return info, nil
}

func infoOf(answer *v1.DescribeLedgerResponse) (*LedgerInfo, error) {
	if len(answer.Id) != len(LedgerID{}) || len(answer.Root) != len(verify.Digest{}) {
		return nil, errors.New("an id or a root of another length")
	}
	founding, err := verify.DecodeFounding(answer.Founding)
	if err != nil {
		return nil, err
	}
	state := verify.LedgerState{Size: answer.Size, Root: verify.Digest(answer.Root), Purged: answer.Purged, Closed: answer.Closed}
	return &LedgerInfo{
		ID: LedgerID(answer.Id), LedgerState: state, Founding: founding, ReadAt: stampOf(answer.ReadAt), Proof: answer.Proof,
	}, nil
}

func (c *Client) checkInfo(
	ctx context.Context, k known, nameKey []byte, read *Read, told *LedgerInfo, founding []byte,
) error {
	keys := verify.AboutKeys{told.ID.HeadKey(), told.ID.FoundingKey()}
	if nameKey != nil {
		keys = append(keys, nameKey)
	}
	return c.believe(ctx, k, told.Proof, keys, func(v *verify.Verified) error {
		if err := checkPlace(v, k, read, told.ReadAt); err != nil {
			return err
		}
		head, err := provenRecord(v, told.ID.HeadKey())
		if err != nil {
			return err
		}
		if state, err := verify.DecodeLedgerState(head); err != nil {
			return err
		} else if state != told.LedgerState {
			return errDisagree
		}
		if shown, err := provenRecord(v, told.ID.FoundingKey()); err != nil {
			return err
		} else if !bytes.Equal(shown, founding) {
			return errDisagree
		}
		if nameKey == nil {
			return nil
		}
		if id, err := provenRecord(v, nameKey); err != nil {
			return err
		} else if !bytes.Equal(id, told.ID[:]) {
			return errors.New("the name is that of another ledger")
		}
		return nil
	})
}

var (
	errDisagree = errors.New("the answer and its proof disagree")
	errOlder    = errors.New("the proof is older than what this client had seen before it asked")
)

// believe verifies the proof of an answer. The proof must answer the question, and pass the check.
func (c *Client) believe(
	ctx context.Context, k known, file []byte, subject verify.Subject, check func(*verify.Verified) error,
) error {
	v, err := c.verifyProof(ctx, k, file)
	if err != nil {
		return err
	}
	if err := v.Answers(verify.Question{Subject: subject}); err != nil {
		return err
	}
	if err := check(v); err != nil {
		return err
	}
	return c.follow(ctx, v, file)
}

// checkHead refuses a proof of another version than head.
func checkHead(v *verify.Verified, k known) error {
	if v.Header == nil || v.Header.Version != v.Newest.Version {
		return errors.New("the proof is not for head")
	}
	return checkAge(v, k)
}

// checkAge refuses a proof that is older than what was known before the question.
func checkAge(v *verify.Verified, k known) error {
	if v.Checkpoint.Size < k.size {
		return errOlder
	}
	return nil
}

// provenValue gives the value that a proof of keys shows, and whether there is one. A record that
// is shown without its value is not absent.
func provenValue(v *verify.Verified, key []byte) (value []byte, found bool, err error) {
	answer, shown := v.Query.Answer(key)
	if !shown || answer.Record != nil && !v.Query.HasValues {
		return nil, false, errors.New("the proof leaves a record or its value out")
	}
	if answer.Record == nil {
		return nil, false, nil
	}
	return answer.Record.Value, true, nil
}

// provenRecord gives a value that must be there.
func provenRecord(v *verify.Verified, key []byte) ([]byte, error) {
	value, found, err := provenValue(v, key)
	if err == nil && !found {
		err = errors.New("the proof shows that there is no such record")
	}
	return value, err
}

// LedgerMember reads the record of a member, or of an agent, at head. It is nil if the ledger has
// none of that name.
func (c *Client) LedgerMember(ctx context.Context, ledger LedgerID, name string) (*verify.Member, error) {
	request := &v1.GetMemberRequest{Ledger: identified(ledger), Member: name, Read: c.recordOptions(nil)}
	return c.memberRecord(ctx, ledger, verify.MemberIDOf(name), request)
}

// memberByID is LedgerMember for a member that a journal names.
func (c *Client) memberByID(ctx context.Context, ledger LedgerID, id verify.MemberID) (*verify.Member, error) {
	request := &v1.GetMemberRequest{Ledger: identified(ledger), Id: id[:], Read: c.recordOptions(nil)}
	return c.memberRecord(ctx, ledger, id, request)
}

func (c *Client) memberRecord(
	ctx context.Context, ledger LedgerID, id verify.MemberID, request *v1.GetMemberRequest,
) (*verify.Member, error) {
	k := c.known()
	answer, err := invoke(ctx, c, "GetMember", safe, request, v1.LedgerClient.GetMember)
	if err != nil {
		return nil, err
	}
	if c.trust != nil {
		key := ledger.MemberKey(id)
		err := c.believe(ctx, k, answer.Proof, verify.AboutKeys{key}, func(v *verify.Verified) error {
			value, found, err := provenValue(v, key)
			if err != nil {
				return err
			}
			if found != (len(answer.Record) > 0) || !bytes.Equal(value, answer.Record) {
				return errDisagree
			}
			return checkHead(v, k)
		})
		if err != nil {
			return nil, distrusted("GetMember", err)
		}
	}
	if len(answer.Record) == 0 {
		return nil, nil
	}
	return memberOf("GetMember", id, answer.Record)
}

// memberOf reads a record, which must belong to the member with this id.
func memberOf(call string, id verify.MemberID, record []byte) (*verify.Member, error) {
	member, err := verify.DecodeMember(record)
	if err != nil {
		return nil, distrusted(call, err)
	}
	if verify.MemberIDOf(member.Name) != id {
		return nil, distrust(call, "the record is that of another member")
	}
	return member, nil
}

// LedgerMembers gives the members and agents of a ledger in the order of their ids, at head. They
// are the coordinator's word: LedgerMember proves one.
func (c *Client) LedgerMembers(ctx context.Context, ledger LedgerID) iter.Seq2[*verify.Member, error] {
	request := &v1.ListMembersRequest{Ledger: identified(ledger)}
	return func(yield func(*verify.Member, error) bool) {
		var last []byte
		for message, err := range messages(ctx, c, "ListMembers", request, v1.LedgerClient.ListMembers, true) {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(message.Id) != len(verify.MemberID{}) || last != nil && bytes.Compare(message.Id, last) <= 0 {
				yield(nil, distrust("ListMembers", "ids that do not ascend"))
				return
			}
			last = message.Id
			member, err := memberOf("ListMembers", verify.MemberID(message.Id), message.Record)
			if !yield(member, err) || err != nil {
				return
			}
		}
	}
}

// NamedLedger is the name and the id of a ledger.
type NamedLedger struct {
	Name string
	ID   LedgerID
}

// Ledgers gives the ledgers of members behind a name, in the order of their names. A member's
// certificate shows it its own. They are the coordinator's word: FindLedger proves one.
func (c *Client) Ledgers(ctx context.Context, after string) iter.Seq2[NamedLedger, error] {
	request := &v1.ListLedgersRequest{After: after}
	return func(yield func(NamedLedger, error) bool) {
		last := after
		for message, err := range messages(ctx, c, "ListLedgers", request, v1.LedgerClient.ListLedgers, true) {
			if err != nil {
				yield(NamedLedger{}, err)
				return
			}
			if message.Name <= last || len(message.Id) != len(LedgerID{}) {
				yield(NamedLedger{}, distrust("ListLedgers", "names that do not ascend, or an id of another length"))
				return
			}
			last = message.Name
			if !yield(NamedLedger{Name: message.Name, ID: LedgerID(message.Id)}, nil) {
				return
			}
		}
	}
}
