package coppice

import (
	"context"
	"errors"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Stage is a batch whose state was computed, and which is not committed. A commit, a rollback or
// another leader ends all stages (StageLost), so a stage lives shortly.
type Stage struct {
	// Stamp names the version that the stage would become.
	Stamp Stamp
	// StateRoot is the root of the state with the batch: the coordinator's word until the stage is
	// finalized.
	StateRoot verify.Digest
	id        []byte
	batch     *v1.Batch
}

// Stage computes the state that a batch would give on head, or on another stage if parent is not
// nil.
func (c *Client) Stage(ctx context.Context, batch *Batch, parent *Stage) (*Stage, error) {
	request := &v1.StageRequest{Batch: &batch.pb}
	if parent != nil {
		request.ParentStageId = parent.id
	}
	answer, err := invoke(ctx, c, "Stage", unsafe, request, v1.LedgerClient.Stage)
	if err != nil {
		return nil, err
	}
	if len(answer.StateRoot) != 32 || len(answer.StageId) == 0 || answer.Stamp == nil {
		return nil, distrust("Stage", "a stage without a name or a root")
	}
	return &Stage{
		Stamp: stampOf(answer.Stamp), StateRoot: verify.Digest(answer.StateRoot), id: answer.StageId, batch: &batch.pb,
	}, nil
}

// Finalize commits a stage whose parent is head. Its version has the state root that was staged.
func (c *Client) Finalize(ctx context.Context, stage *Stage) (*Committed, error) {
	k := c.known()
	request := &v1.FinalizeRequest{StageId: stage.id, WantReceipt: c.trust != nil}
	answer, err := invoke(ctx, c, "Finalize", unsafe, request, v1.LedgerClient.Finalize)
	if err != nil {
		return nil, err
	}
	committed, err := c.believeCommit(ctx, "Finalize", k, sentBatch{pb: stage.batch}, answer)
	if err != nil {
		return nil, err
	}
	header, err := verify.DecodeHeader(committed.Header)
	if err == nil && header.StateRoot != stage.StateRoot {
		err = errors.New("the version has another state root than the stage")
	}
	if err != nil {
		return nil, afterCommit("Finalize", err)
	}
	return committed, nil
}

// Discard drops a stage, and all that build on it. It gives how many were dropped.
func (c *Client) Discard(ctx context.Context, stage *Stage) (int, error) {
	request := &v1.DiscardRequest{StageId: stage.id}
	answer, err := invoke(ctx, c, "Discard", safe, request, v1.LedgerClient.Discard)
	return int(answer.GetDiscarded()), err
}
