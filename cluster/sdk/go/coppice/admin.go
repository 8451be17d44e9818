package coppice

import (
	"context"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Checkpointed is a signed checkpoint.
type Checkpointed struct {
	// Checkpoint is a signed note.
	Checkpoint []byte
	// Standing is the proof file that the log grew from an older size, if that was asked for.
	Standing []byte
}

// Checkpoint gives the newest signed checkpoint. If the old size is above 0, the answer has a proof
// that the log grew from there. It is not verified: verify.OpenCheckpoint and verify.Verify do
// that.
func (c *Client) Checkpoint(ctx context.Context, oldSize uint64) (*Checkpointed, error) {
	return c.checkpoint(ctx, &v1.GetCheckpointRequest{OldSize: oldSize})
}

// CosignedCheckpoint is like Checkpoint, but waits for the newest one that witnesses have cosigned.
func (c *Client) CosignedCheckpoint(ctx context.Context, oldSize uint64) (*Checkpointed, error) {
	return c.checkpoint(ctx, &v1.GetCheckpointRequest{OldSize: oldSize, Cosigned: true})
}

func (c *Client) checkpoint(ctx context.Context, request *v1.GetCheckpointRequest) (*Checkpointed, error) {
	answer, err := invoke(ctx, c, "GetCheckpoint", safe, request, v1.LedgerClient.GetCheckpoint)
	if err != nil {
		return nil, err
	}
	return &Checkpointed{Checkpoint: answer.Checkpoint, Standing: answer.Standing}, nil
}

// Head is the newest state, as one coordinator says it.
type Head struct {
	Stamp     Stamp
	StateRoot []byte
	// LogSize counts the entries of the root log.
	LogSize uint64
	Time    time.Time
	// PrunedBoundary is the oldest version that can be read.
	PrunedBoundary uint64
	Checkpoint     []byte
}

// Head asks for the newest state. The answer is the coordinator's word, without a proof.
func (c *Client) Head(ctx context.Context) (*Head, error) {
	answer, err := invoke(ctx, c, "Head", safe, &v1.HeadRequest{}, v1.LedgerClient.Head)
	if err != nil {
		return nil, err
	}
	return &Head{
		Stamp: stampOf(answer.Stamp), StateRoot: answer.StateRoot, LogSize: answer.LogSize,
		Time: timeOf(answer.TimestampMs), PrunedBoundary: answer.PrunedBoundary, Checkpoint: answer.Checkpoint,
	}, nil
}

// HeaderOf gives the header of a version that stands, in canonical bytes. It is not verified.
func (c *Client) HeaderOf(ctx context.Context, version uint64) ([]byte, error) {
	return c.header(ctx, &v1.GetHeaderRequest{Which: &v1.GetHeaderRequest_Version{Version: version}})
}

// HeaderAt gives an entry of the root log, in canonical bytes. It is not verified.
func (c *Client) HeaderAt(ctx context.Context, sequence uint64) ([]byte, error) {
	return c.header(ctx, &v1.GetHeaderRequest{Which: &v1.GetHeaderRequest_Sequence{Sequence: sequence}})
}

func (c *Client) header(ctx context.Context, request *v1.GetHeaderRequest) ([]byte, error) {
	answer, err := invoke(ctx, c, "GetHeader", safe, request, v1.LedgerClient.GetHeader)
	return answer.GetHeader(), err
}

// Order says who asks for an operation that removes data or changes a key, and why. Both texts are
// required, and stand in the root log for good.
type Order struct {
	Principal string
	Reason    string
	// ExpectedHead is the head that the caller has seen. A repeated order then does not act twice.
	// Nil accepts any.
	ExpectedHead *Stamp
}

// Ordered is the answer to an order.
type Ordered struct {
	// Header is the operation's header, in canonical bytes.
	Header         []byte
	Head           Stamp
	PrunedBoundary uint64
	Checkpoint     []byte
}

func (o *Order) head() *v1.Stamp {
	if o.ExpectedHead == nil {
		return nil
	}
	return toStamp(*o.ExpectedHead)
}

func ordered(answer *v1.AdminResponse, err error) (*Ordered, error) {
	if err != nil {
		return nil, err
	}
	return &Ordered{
		Header: answer.Header, Head: stampOf(answer.Head), PrunedBoundary: answer.PrunedBoundary,
		Checkpoint: answer.Checkpoint,
	}, nil
}

// Prune drops the versions before one for good.
func (c *Client) Prune(ctx context.Context, before uint64, order Order) (*Ordered, error) {
	request := &v1.PruneRequest{
		Before:       &before,
		Reason:       order.Reason,
		Principal:    order.Principal,
		ExpectedHead: order.head(),
	}
	return ordered(invoke(ctx, c, "Prune", unsafe, request, v1.LedgerClient.Prune))
}

// Rollback makes an older version head again, in a new epoch. Version 0 is the empty ledger.
func (c *Client) Rollback(ctx context.Context, to uint64, order Order) (*Ordered, error) {
	request := &v1.RollbackRequest{To: &to, Reason: order.Reason, Principal: order.Principal, ExpectedHead: order.head()}
	return ordered(invoke(ctx, c, "Rollback", unsafe, request, v1.LedgerClient.Rollback))
}

// RotateKey changes the key that signs checkpoints. The leading coordinator must hold the private
// key already. If the answer is lost, the root log shows whether the key was changed.
func (c *Client) RotateKey(ctx context.Context, key verify.VKey, order Order) (*Ordered, error) {
	request := &v1.RotateKeyRequest{
		Vkey: key.String(), Reason: order.Reason, Principal: order.Principal, ExpectedHead: order.head(),
	}
	return ordered(invoke(ctx, c, "RotateKey", unsafe, request, v1.LedgerClient.RotateKey))
}

// Anchor has the newest checkpoint stamped by the time stamping authorities of the leading
// coordinator, and gives the header of the root log that keeps their tokens. If the answer is lost,
// the root log shows whether there is a new anchor.
func (c *Client) Anchor(ctx context.Context) ([]byte, error) {
	answer, err := invoke(ctx, c, "Anchor", unsafe, &v1.AnchorRequest{}, v1.LedgerClient.Anchor)
	if err != nil {
		return nil, err
	}
	return answer.Header, nil
}

// TransferLeader hands a group's leadership to the replica on a node, and waits until that replica
// leads. A group is `root` or `shard-N`.
func (c *Client) TransferLeader(ctx context.Context, group, node string) error {
	request := &v1.TransferLeaderRequest{Group: group, Node: node}
	_, err := invoke(ctx, c, "TransferLeader", safe, request, v1.LedgerClient.TransferLeader)
	return err
}

// PinID is the name of a pin. It should be random.
type PinID [16]byte

// Pin is a version that is kept from being pruned for a while.
type Pin struct {
	ID      PinID
	Version uint64
	// Expires is by the ledger's clock.
	Expires time.Time
}

func pinOf(pin *v1.VersionPin) Pin {
	p := Pin{Version: pin.GetVersion(), Expires: timeOf(pin.GetExpiresMs())}
	copy(p.ID[:], pin.GetId())
	return p
}

// Pin keeps a version from being pruned for at most a day. A pin of the same name is renewed.
func (c *Client) Pin(ctx context.Context, id PinID, version uint64, duration time.Duration) (Pin, error) {
	request := &v1.PinRequest{PinId: id[:], Version: &version, TtlMs: uint64(max(duration.Milliseconds(), 0))}
	answer, err := invoke(ctx, c, "Pin", safe, request, v1.LedgerClient.Pin)
	return pinOf(answer.GetPin()), err
}

// Unpin ends a pin, and tells whether there was one.
func (c *Client) Unpin(ctx context.Context, id PinID) (bool, error) {
	answer, err := invoke(ctx, c, "Unpin", safe, &v1.UnpinRequest{PinId: id[:]}, v1.LedgerClient.Unpin)
	return answer.GetFound(), err
}

// Pins gives the living pins.
func (c *Client) Pins(ctx context.Context) ([]Pin, error) {
	answer, err := invoke(ctx, c, "ListPins", safe, &v1.ListPinsRequest{}, v1.LedgerClient.ListPins)
	var pins []Pin
	for _, pin := range answer.GetPins() {
		pins = append(pins, pinOf(pin))
	}
	return pins, err
}

// Status shows the groups, replicas and coordinators of the ledger, as one coordinator sees them.
func (c *Client) Status(ctx context.Context) (*v1.StatusResponse, error) {
	return invoke(ctx, c, "Status", safe, &v1.StatusRequest{}, v1.LedgerClient.Status)
}
