package coppice

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"math"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// lanesEnd is the number of lanes of a member.
const lanesEnd = 16

// seenLog is the root log that a request signed now names.
type seenLog struct {
	cluster verify.ClusterID
	epoch   uint64
	size    uint64
	root    verify.Digest
}

// request completes a request with what was seen.
func (s *seenLog) request(signed verify.SignedRequest) verify.SignedRequest {
	signed.Cluster, signed.Epoch, signed.SeenSize, signed.SeenRoot = s.cluster, s.epoch, s.size, s.root
	return signed
}

// look gives the newest checkpoint and epoch. A proof of growth shows both, and shows that the log
// extends the one that was seen before.
func (c *Client) look(ctx context.Context) (*seenLog, error) {
	if c.trust == nil {
		return c.lookUnverified(ctx)
	}
	c.trust.mutex.Lock()
	old := c.trust.newest
	c.trust.mutex.Unlock()
	v, err := c.growthOf(ctx, old)
	if err != nil {
		return nil, err
	}
	return &seenLog{
		cluster: v.Cluster, epoch: v.Newest.Epoch, size: v.Checkpoint.Size, root: v.Checkpoint.Root,
	}, nil
}

func (c *Client) lookUnverified(ctx context.Context) (*seenLog, error) {
	answer, err := invoke(ctx, c, "Head", safe, &v1.HeadRequest{}, v1.LedgerClient.Head)
	if err != nil {
		return nil, err
	}
	checkpoint, err := verify.ClaimedCheckpoint(answer.Checkpoint)
	if err != nil || len(answer.ClusterId) != len(verify.ClusterID{}) {
		return nil, distrust("Head", "no checkpoint, or no id of a cluster")
	}
	return &seenLog{
		cluster: verify.ClusterID(answer.ClusterId), epoch: answer.Stamp.GetEpoch(), size: checkpoint.Size,
		root: checkpoint.Root,
	}, nil
}

// Author signs requests for one member in one of its lanes. A lane applies its requests in the
// order of their numbers, each once. After an error whose outcome is unknown, append the same Draft
// again: the same bytes are sent, and the answer is the same. One goroutine at a time uses an
// Author; others take other lanes.
type Author struct {
	client *Client
	signer *ledgerSigner
	// place has the fields that are equal in all requests.
	place verify.SignedRequest
	seen  *seenLog
	// number is the number of the next request.
	number uint64
	// pending is the request of that number, if its outcome is unknown.
	pending *verify.Request
}

// Author begins behind the newest request in a lane (0 to 15) of a member, or of an agent, which
// signs for its principal. The error is NotAMember if the ledger has nobody of that name.
func (c *Client) Author(
	ctx context.Context, ledger LedgerID, member string, lane uint8, key crypto.Signer,
) (*Author, error) {
	signer, err := newSigner(key)
	if err != nil {
		return nil, err
	}
	if lane >= lanesEnd {
		return nil, fmt.Errorf("coppice: the lanes of a member are 0 to %d", lanesEnd-1)
	}
	record, err := c.LedgerMember(ctx, ledger, member)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return nil, fmt.Errorf("coppice: the ledger has no member or agent %q: %w", member, NotAMember)
	}
	newest := record.Newest(lane)
	if newest == math.MaxUint64 {
		return nil, errors.New("coppice: the numbers of the lane are used up")
	}
	seen, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	id := verify.MemberIDOf(member)
	place := verify.SignedRequest{Ledger: ledger, Member: id, Lane: lane}
	if record.Agency != nil {
		place.Member, place.Agent = record.Agency.Principal, &id
	}
	return &Author{client: c, signer: signer, place: place, seen: seen, number: newest + 1}, nil
}

// Number is the number of the next request in the lane.
func (a *Author) Number() uint64 { return a.number }

// Pending is the request whose outcome is unknown, or nil. It is sent again before any other one.
func (a *Author) Pending() *verify.Request { return a.pending }

// Look takes the newest checkpoint and epoch, which later requests name. It is needed after
// StaleView: a rollback has begun another epoch.
func (a *Author) Look(ctx context.Context) error {
	seen, err := a.client.look(ctx)
	if err == nil {
		a.seen = seen
	}
	return err
}

// Sign makes the next request of the lane, without sending it. It can be kept, and sent by
// AppendRequest as often as needed.
func (a *Author) Sign(draft *Draft) (*verify.Request, error) {
	signed := a.seen.request(a.place)
	signed.Number = a.number
	return draft.sign(a.signer, signed)
}

// Append appends the journals of a draft in one request. If the outcome of the request before is
// unknown, that one is sent again first; if it was made from the same draft, its answer is the
// answer. A request that was refused uses up no number.
func (a *Author) Append(ctx context.Context, draft *Draft) (*Appended, error) {
	if a.pending != nil {
		same := draft.asks(a.pending)
		appended, err := a.Settle(ctx)
		if same || a.pending != nil {
			return appended, err
		}
		// A refusal says that the other request was not applied.
	}
	request, err := a.Sign(draft)
	if err != nil {
		return nil, err
	}
	return a.pass(ctx, request)
}

// Settle sends the request with an unknown outcome again. If there is none, it does nothing and the
// answer is nil.
func (a *Author) Settle(ctx context.Context) (*Appended, error) {
	if a.pending == nil {
		return nil, nil
	}
	request := a.pending
	appended, err := a.pass(ctx, request)
	if errors.Is(err, Lane) {
		// Another author has gone on in this lane. Only the newest request gets its answer again, so
		// this one may have been applied before.
		a.pending = request
	}
	return appended, err
}

// pass sends the request of the next number, and keeps it if its outcome is unknown.
func (a *Author) pass(ctx context.Context, request *verify.Request) (*Appended, error) {
	appended, err := a.client.AppendRequest(ctx, request)
	a.pending = nil
	if err != nil {
		if OutcomeUnknown(err) {
			a.pending = request
		}
		return nil, err
	}
	a.number++
	// A receipt's checkpoint is newer than what was seen before it was asked for.
	if checkpoint, err := verify.ClaimedCheckpoint(appended.Checkpoint); err == nil {
		a.seen.size, a.seen.root = checkpoint.Size, checkpoint.Root
	}
	return appended, nil
}

// NewKey is the change that gives a member, or an agent, another key from the next journal on. The
// new key signs that it is the member's.
func (a *Author) NewKey(member string, key crypto.Signer) (verify.MemberChange, error) {
	signer, err := newSigner(key)
	if err != nil {
		return verify.MemberChange{}, err
	}
	change := verify.MemberChange{Kind: verify.ChangeKey, Member: verify.MemberIDOf(member), Key: signer.public}
	change.Consent, err = signer.sign(
		verify.ConsentMessage(a.seen.cluster, a.place.Ledger, change.Member, change.Key))
	return change, err
}
