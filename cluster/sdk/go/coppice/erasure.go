package coppice

import (
	"context"
	"time"

	v1 "coppice.dev/sdk/v1"
)

// The states of an erasure on one replica.
const (
	// ErasureDone says that the content is gone from the replica's disk.
	ErasureDone = "done"
	// ErasureOpen says that the replica erases, or has not heard of the order yet.
	ErasureOpen = "open"
	// ErasureUnreachable says that the replica's state is unknown.
	ErasureUnreachable = "unreachable"
)

// erasurePause is the time between two questions of WaitForErasure.
const erasurePause = 100 * time.Millisecond

// Erasure says from which disks the content is gone that an order has occulted.
type Erasure struct {
	// Ordered is the version that has the order.
	Ordered Stamp
	// Replicas has the replicas of all shards that had the content, by shard and node.
	Replicas []ReplicaErasure
	// Done says that the content is gone from the disks of all of them.
	Done bool
}

// ReplicaErasure is the state of one replica.
type ReplicaErasure struct {
	Group string
	// Node is empty if no node reports the replica.
	Node   string
	RaftID uint64
	// State is one of the states above.
	State string
}

// Erasure asks from which disks the content is gone that an order occulted. The order is named by
// its journal. The answer is the operator's word: no proof shows what is on a disk.
func (c *Client) Erasure(ctx context.Context, ledger LedgerID, jsn uint64) (*Erasure, error) {
	request := &v1.ErasureStatusRequest{Ledger: identified(ledger), Jsn: jsn}
	answer, err := invoke(ctx, c, "ErasureStatus", safe, request, v1.LedgerClient.ErasureStatus)
	if err != nil {
		return nil, err
	}
	erasure := &Erasure{Ordered: stampOf(answer.Ordered), Done: answer.Done}
	done := len(answer.Replicas) > 0
	for _, replica := range answer.Replicas {
		done = done && replica.GetState() == ErasureDone
		erasure.Replicas = append(erasure.Replicas, ReplicaErasure{
			Group: printable(replica.GetGroup()), Node: printable(replica.GetNode()), RaftID: replica.GetRaftId(),
			State: printable(replica.GetState()),
		})
	}
	if done != answer.Done {
		return nil, distrust("ErasureStatus", "the answer and the states of its replicas disagree")
	}
	return erasure, nil
}

// WaitForErasure asks until the content is gone from all disks, or the limit is over. It gives the
// last answer in both cases, so check Done. It fails if the context ends first.
func (c *Client) WaitForErasure(
	ctx context.Context, ledger LedgerID, jsn uint64, limit time.Duration,
) (*Erasure, error) {
	end := time.Now().Add(limit)
	for {
		erasure, err := c.Erasure(ctx, ledger, jsn)
		if err != nil || erasure.Done || time.Now().Add(erasurePause).After(end) {
			return erasure, err
		}
		if err := sleep(ctx, erasurePause); err != nil {
			return nil, err
		}
	}
}
