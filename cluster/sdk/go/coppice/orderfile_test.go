package coppice

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"coppice.dev/sdk/verify"
)

func TestTheCommandAndTheClientSignTheSameFile(t *testing.T) {
	p := foundPurged(t, "order-file", nil)
	l, ctx := membersLedger(t), limited(t)
	must(p.mill.Append(ctx, numbered(1, 3)))(t)
	ours, theirs := filepath.Join(t.TempDir(), "ours"), filepath.Join(t.TempDir(), "theirs")
	draft := must(p.client.PreparePurge(ctx, p.ledger, 2, 9))(t)
	if draft.Order.Purge.Before != 2 {
		t.Errorf("%+v", draft.Order)
	}
	draft = must(p.client.PreparePurge(ctx, p.ledger, 4, 9))(t)
	if err := os.WriteFile(ours, must(draft.Encode())(t), 0o600); err != nil {
		t.Fatal(err)
	}
	l.command(t, "ledger", "purge", "prepare", "order-file", "--before", "4", "--within", "9",
		"--out", theirs)
	if file := must(os.ReadFile(theirs))(t); !bytes.Equal(file, must(draft.Encode())(t)) {
		t.Errorf("the command wrote %s", file)
	}
	l.command(t, "order", "sign", ours, "--key", keyFile(t, "mill"))
	signed := must(DecodeOrderFile(must(os.ReadFile(ours))(t)))(t)
	if len(signed.Approvals) != 1 || signed.Approvals[0].Member != "mill" {
		t.Fatalf("%+v", signed)
	}
	// Ed25519 has one signature of a message, so the client's is the same.
	by := signed.Approvals[0]
	err := signed.Approve("mill", handOf("mill"))
	if err != nil || len(signed.Approvals) != 1 || signed.Approvals[0] != by {
		t.Errorf("%+v, %v", signed.Approvals, err)
	}
	purge := p.submit(t, signed)
	if status := p.status(t); status.Order != purge || status.Before != 4 {
		t.Errorf("%+v", status)
	}
	// A signature twice counts once.
	signed.Approvals = append(signed.Approvals, signed.Approvals[0])
	must(p.bank.OrderDraft(signed))(t)
	// The file is for one ledger of one cluster.
	for _, change := range []func(*OrderFile){
		func(f *OrderFile) { f.Ledger[0] ^= 1 }, func(f *OrderFile) { f.Cluster[0] ^= 1 },
	} {
		other := *signed
		change(&other)
		if draft, err := p.bank.OrderDraft(&other); err == nil {
			t.Errorf("%+v", draft)
		}
	}
}

func TestAnOrderByTheClientIsSubmittedByTheCommand(t *testing.T) {
	p := foundPurged(t, "order-theirs", func(f *verify.Founding) { f.Policy.Occult = 1 })
	l, ctx := membersLedger(t), limited(t)
	must(p.mill.Append(ctx, numbered(1, 3)))(t)
	file := must(p.client.PrepareOccult(ctx, p.ledger, 9, 3, 1, 3))(t)
	if targets := file.Order.Targets; len(targets) != 2 || targets[0].JSN != 1 || targets[1].JSN != 3 {
		t.Fatalf("%+v", targets)
	}
	if err := file.Approve("court", handOf("court")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "order")
	if err := os.WriteFile(path, must(file.Encode())(t), 0o600); err != nil {
		t.Fatal(err)
	}
	l.command(t, "order", "submit", path, "--key", keyFile(t, "bank"))
	given := must(p.client.LedgerOrder(ctx, p.ledger, 4))(t)
	if len(given.Signers) != 2 || given.Signers[1].Name != "court" {
		t.Errorf("%+v", given)
	}
	// Each of these has no order of 1 to 1,024 journals with data.
	for what, err := range map[string]error{
		"no journals": second(p.client.PrepareOccult(ctx, p.ledger, 9)),
		"a founding":  second(p.client.PrepareOccult(ctx, p.ledger, 9, 0)),
		"no such journal": func() error {
			err := second(p.client.PrepareOccult(ctx, p.ledger, 9, 99))
			if !errors.Is(err, NotFound) {
				t.Error(err)
			}
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s: an order", what)
		}
	}
	if err := file.Approve("court", nil); err == nil {
		t.Error("nobody has signed")
	}
}

func TestAFileOfAnOrderHasOneForm(t *testing.T) {
	file := &OrderFile{
		Name: "grain", Cluster: verify.ClusterID{1}, Ledger: LedgerID{2},
		Order: &verify.Order{Until: 9, Targets: []verify.Target{{JSN: 3, Leaf: verify.Digest{4}}}},
	}
	if err := file.Approve("mill", handOf("mill")); err != nil {
		t.Fatal(err)
	}
	text := string(must(file.Encode())(t))
	again := must(DecodeOrderFile([]byte(text)))(t)
	if string(must(again.Encode())(t)) != text || again.Name != "grain" || again.Order.Until != 9 {
		t.Errorf("%+v", again)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		t.Fatal(err)
	}
	must(DecodeOrderFile(compact.Bytes()))(t)
	order := hex.EncodeToString(must(file.Order.Encode())(t))
	order = order[:len(order)-4]
	change := func(old, text2 string) string { return strings.Replace(text, old, text2, 1) }
	for what, bad := range map[string]string{
		"no text":            "",
		"a part":             text[:len(text)/2],
		"another format":     change(`"coppice_order": 1`, `"coppice_order": 2`),
		"an unknown field":   change(`"coppice_order": 1`, `"coppice_order": 1, "more": 1`),
		"a field twice":      change(`"order":`, `"order": "`+order+`", "order":`),
		"a field in capital": change(`"order":`, `"Order": "`+order+`", "order":`),
		"no ledger's name":   change(`  "ledger": "grain",`, ``),
		"two orders":         text + text,
		"a shorter id":       change(file.Cluster.String(), file.Cluster.String()[2:]),
		"another id":         change(file.Ledger.String(), "zz"+file.Ledger.String()[2:]),
		"an order in prose":  change(order, "all of it"),
		"a longer order":     change(order, order+"00"),
		"a shorter order":    change(order, order[2:]),
		"a shorter approval": change(`"signature": "`, `"signature": "00`),
		"far too much":       text + strings.Repeat(" ", orderFileMax),
		"too many signatures": change(`"approvals": [`,
			`"approvals": [`+strings.Repeat(`{"member":"a","signature":""},`, ordersSignersMax)),
	} {
		if bad == text {
			t.Fatalf("%s: the case changes nothing", what)
		}
		if read, err := DecodeOrderFile([]byte(bad)); err == nil {
			t.Errorf("%s: %+v", what, read)
		}
	}
	file.Order = &verify.Order{}
	if _, err := file.Encode(); err == nil {
		t.Error("an order that does nothing is written")
	}
}
