package coppice

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

func TestOccultedContentIsErasedFromAllDisks(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	founding := foundingOf("erased")
	founding.Policy.Occult = 1
	founding.Members = append(founding.Members, granted("court", verify.RoleRegulator|verify.RoleReader))
	ledger := must(client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	must(bank.Append(ctx, new(Draft).Add([]byte("secret"))))(t)
	page := must(client.JournalPage(ctx, ledger, 1, 1, wholeJournals, nil))(t)
	target := verify.Target{JSN: 1, Leaf: page.Journals[0].Leaf.Hash()}
	order := must(bank.Append(ctx, new(Draft).Occult(orderOf(t, bank.seen, ledger, target))))(t)

	erasure := must(client.WaitForErasure(ctx, ledger, order.FirstJSN, testPatience))(t)
	if !erasure.Done || erasure.Ordered != order.Stamp || len(erasure.Replicas) == 0 {
		t.Errorf("%+v", erasure)
	}
	for _, replica := range erasure.Replicas {
		if replica.State != ErasureDone || replica.Group == "" || replica.Node == "" {
			t.Errorf("%+v", replica)
		}
	}
	for what, jsn := range map[string]uint64{"data": 1, "no journal": 1000} {
		var failed *Error
		if got, err := client.Erasure(ctx, ledger, jsn); !errors.As(err, &failed) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}

	for what, lie := range map[string]func(*v1.ErasureStatusResponse){
		"done, and a replica is open": func(a *v1.ErasureStatusResponse) { a.Replicas[0].State = ErasureOpen },
		"done, and nobody knows":      func(a *v1.ErasureStatusResponse) { a.Replicas[0].State = ErasureUnreachable },
		"done by nobody":              func(a *v1.ErasureStatusResponse) { a.Replicas = nil },
		"not done, and all are":       func(a *v1.ErasureStatusResponse) { a.Done = false },
	} {
		r.onErasure = lie
		got, err := client.Erasure(ctx, ledger, order.FirstJSN)
		isLie(t, what, got, err)
	}
	r.onErasure = func(a *v1.ErasureStatusResponse) {
		a.Done, a.Replicas[0].State, a.Replicas[0].Node = false, ErasureUnreachable, "node\x1b[2J"
	}
	calls := r.count("ErasureStatus")
	waited := must(client.WaitForErasure(ctx, ledger, order.FirstJSN, 3*erasurePause))(t)
	if waited.Done || waited.Replicas[0].Node != "node\uFFFD[2J" || r.count("ErasureStatus")-calls < 2 {
		t.Errorf("%+v after %d calls", waited, r.count("ErasureStatus")-calls)
	}
	short, cancel := context.WithTimeout(ctx, erasurePause)
	defer cancel()
	got, err := client.WaitForErasure(short, ledger, order.FirstJSN, time.Hour)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v", got, err)
	}
}
