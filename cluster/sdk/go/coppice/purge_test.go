package coppice

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// refusedAsPurged is the answer of a coordinator that has no such journal any more.
func refusedAsPurged(t testing.TB) error {
	t.Helper()
	info := &errdetails.ErrorInfo{Domain: domain, Reason: string(PurgedJournal)}
	return must(status.New(codes.NotFound, "purged").WithDetails(info))(t).Err()
}

// purgeOf is an order of the bank to purge below a number, which the mill approves.
func purgeOf(t testing.TB, seen *seenLog, info *LedgerInfo, before uint64, closes bool) *verify.Order {
	t.Helper()
	order := &verify.Order{Until: 1000, Purge: &verify.PurgeOrder{
		Before: before, Closes: closes, Size: info.Size, Root: info.Root, Authors: 2,
	}}
	approval := verify.Approval{Member: verify.MemberIDOf("mill")}
	copy(approval.Signature[:], ed25519.Sign(handOf("mill"), order.Message(seen.cluster, info.ID)))
	order.Approvals = []verify.Approval{approval}
	return order
}

func TestAJournalIsMissingOnlyIfAPurgeCanHaveTakenIt(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	founding := foundingOf("purge")
	founding.Policy.RetainedMax = 1
	ledger := must(client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	mill := must(client.Author(ctx, ledger, "mill", 0, handOf("mill")))(t)
	lot := []byte("lot")
	for _, word := range []string{"first", "second", "third", "fourth"} {
		must(mill.Append(ctx, new(Draft).Add([]byte(word), lot)))(t)
	}
	order := func(author *Author, order *verify.Order) uint64 {
		t.Helper()
		order.Until = 1000
		return must(author.Append(ctx, new(Draft).Order(order)))(t).FirstJSN
	}
	describe := func() *LedgerInfo { return must(client.DescribeLedger(ctx, ledger, nil))(t) }
	page := func(from uint64) (*JournalPage, error) {
		return client.JournalPage(ctx, ledger, from, 9, wholeJournals, nil)
	}
	if err := second(bank.Append(ctx, new(Draft).Occult(purgeOf(t, bank.seen, describe(), 4, false)))); err == nil {
		t.Error("a purge is taken for an order that occults")
	}
	purge := must(bank.Append(ctx, new(Draft).Order(purgeOf(t, bank.seen, describe(), 4, false))))(t).FirstJSN
	order(mill, &verify.Order{Retain: &verify.RetainOrder{Purge: purge, Journals: []uint64{2}}})
	order(bank, &verify.Order{Sweep: &verify.SweepOrder{Purge: purge, From: 0, To: 4}})
	if info := describe(); info.Purged != 4 || info.Closed {
		t.Errorf("%+v", info)
	}

	// 0 is the founding, 2 is retained, and 4 lies behind the purge.
	for from, wanted := range []int{1, 0, 1, 0, 4} {
		got, err := page(uint64(from))
		if wanted == 0 && (!errors.Is(err, PurgedJournal) || errors.Is(err, ErrUntrusted)) ||
			wanted > 0 && (err != nil || len(got.Journals) != wanted) {
			t.Errorf("from %d: %+v, %v", from, got, err)
		}
	}
	var read []uint64
	for journal, err := range client.LedgerJournals(ctx, ledger, 0, wholeJournals) {
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, journal.Leaf.JSN)
	}
	if len(read) != 5 || read[0] != 0 || read[1] != 4 || read[4] != 7 {
		t.Errorf("%v", read)
	}
	for _, err := range client.LedgerJournals(ctx, ledger, 1, wholeJournals) {
		if !errors.Is(err, PurgedJournal) {
			t.Error(err)
		}
	}
	for newest, words := range []string{"fourth,second", "fourth", "fourth", "fourth,second"} {
		lineage := must(client.Lineage(ctx, ledger, lot, uint32(newest), wholeJournals))(t)
		if payloads(lineage.Journals) != words || lineage.Count != 4 || lineage.Gone != 3 {
			t.Errorf("the newest %d: %+v", newest, lineage)
		}
	}
	given := must(client.LedgerOrder(ctx, ledger, purge))(t)
	if given.Order.Purge == nil || len(given.Signers) != 2 || given.Signers[1].Name != "mill" {
		t.Errorf("%+v", given)
	}
	if swept := must(client.LedgerOrder(ctx, ledger, purge+2))(t); swept.Order.Sweep == nil || len(swept.Signers) != 1 {
		t.Errorf("%+v", swept)
	}

	for what, lie := range map[string]func(*v1.GetLineageResponse){
		"one less is gone":              func(a *v1.GetLineageResponse) { a.Gone-- },
		"one more is gone":              func(a *v1.GetLineageResponse) { a.Gone++ },
		"more are gone than there were": func(a *v1.GetLineageResponse) { a.Gone = 9 },
		"a kept journal is left out":    func(a *v1.GetLineageResponse) { a.Journals = a.Journals[:1] },
		"a journal that is not gone":    func(a *v1.GetLineageResponse) { a.Journals = a.Journals[1:] },
	} {
		r.onLineage = lie
		got, err := client.Lineage(ctx, ledger, lot, 0, wholeJournals)
		isLie(t, what, got, err)
	}
	for what, lie := range map[string]func(*v1.DescribeLedgerResponse){
		"a larger purge":  func(a *v1.DescribeLedgerResponse) { a.Purged++ },
		"no purge":        func(a *v1.DescribeLedgerResponse) { a.Purged = 0 },
		"a closed ledger": func(a *v1.DescribeLedgerResponse) { a.Closed = true },
	} {
		r.onDescribe = lie
		got, err := client.DescribeLedger(ctx, ledger, nil)
		isLie(t, what, got, err)
	}
	r.onDescribe = nil
	withheld := func(what string, got any, err error) {
		t.Helper()
		if isLie(t, what, got, err); errors.Is(err, PurgedJournal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.noJournals = refusedAsPurged(t)
	got, err := page(4)
	withheld("a journal that no purge has taken", got, err)
	for _, err := range client.LedgerJournals(ctx, ledger, 4, wholeJournals) {
		withheld("all journals that no purge has taken", nil, err)
	}
	orders, err := client.LedgerOrder(ctx, ledger, purge)
	withheld("the order to purge", orders, err)
	r.noJournals = nil
	r.onJournals = func(a *v1.GetJournalsResponse) {
		become(a, must(r.ledger.GetJournals(ctx, &v1.GetJournalsRequest{
			Ledger: identified(ledger), FromJsn: 4, Limit: 2, WantPayload: true, WantRequest: true, Read: at(nil),
		}))(t))
	}
	got, err = page(4)
	withheld("a page that ends early", got, err)

	unverified := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	if err := second(unverified.JournalPage(ctx, ledger, 1, 9, wholeJournals, nil)); !errors.Is(err, PurgedJournal) {
		t.Error(err)
	}
}

// withholds is a coordinator that gives all journals but one. Pages end before it, or are refused
// as if a purge had taken it.
func withholds(t *testing.T, jsn uint64) func(*relay) {
	t.Helper()
	gone := refusedAsPurged(t)
	return func(r *relay) {
		r.onAsked = func(request *v1.GetJournalsRequest, answer *v1.GetJournalsResponse) error {
			if jsn < request.FromJsn || jsn-request.FromJsn >= uint64(len(answer.Journals)) {
				return nil
			}
			if request.Limit = uint32(jsn - request.FromJsn); request.Limit == 0 {
				return gone
			}
			less, err := r.ledger.GetJournals(limited(t), request)
			if err == nil {
				become(answer, less)
			}
			return err
		}
	}
}

// foundKept is a ledger of 9 journals below whose second purge are 0 to 6. The founding, journal 2,
// which is retained, and the orders 4 to 6 of the first purge are kept.
func foundKept(t *testing.T, name string) *purged {
	t.Helper()
	p := foundPurged(t, name, nil)
	ctx := limited(t)
	for jsn := range 3 {
		must(p.mill.Append(ctx, numbered(jsn+1, 1)))(t)
	}
	first := must(p.client.PreparePurge(ctx, p.ledger, 4, 9))(t)
	p.submit(t, &first.OrderFile, "mill")
	must(p.mill.Append(ctx, must(p.client.PrepareRetain(ctx, p.ledger, 2))(t)))(t)
	p.sweep(t)
	next := must(p.client.PreparePurge(ctx, p.ledger, 7, 9))(t)
	p.submit(t, &next.OrderFile, "mill")
	p.sweep(t)
	return p
}

func TestAJournalThatAPurgeKeepsIsWithheldWhereItIsMissing(t *testing.T) {
	p := foundKept(t, "purge-keeps")
	ctx := limited(t)
	anchor := must(p.client.TrustLedger(ctx, p.ledger))(t)
	read := func(from uint64) map[string]error {
		claim := JournalClaim{Ledger: p.ledger, JSN: from, AnyPayload: true}
		return map[string]error{
			"a page":             second(p.client.JournalPage(ctx, p.ledger, from, 9, wholeJournals, nil)),
			"an order":           second(p.client.LedgerOrder(ctx, p.ledger, from)),
			"a verdict":          second(p.client.VerifyJournal(ctx, claim)),
			"what an anchor has": second(p.client.JournalsBelow(ctx, anchor, from, 9, true)),
		}
	}
	for _, jsn := range []uint64{1, 3} {
		for what, err := range read(jsn) {
			if !errors.Is(err, PurgedJournal) || errors.Is(err, ErrUntrusted) {
				t.Errorf("%s, journal %d is gone: %v", what, jsn, err)
			}
		}
	}
	withheld := func(what string, jsn uint64, err error) {
		t.Helper()
		if isLie(t, what, jsn, err); errors.Is(err, PurgedJournal) || !strings.Contains(err.Error(), "keeps it") {
			t.Errorf("%s, journal %d: %v", what, jsn, err)
		}
	}
	for _, jsn := range []uint64{0, 2, 4, 5, 6} {
		withholds(t, jsn)(p.relay)
		for what, err := range read(jsn) {
			withheld(what, jsn, err)
		}
	}
	// Pages that end early: the last journal that is hidden is 6, behind 4 and 5.
	withheld("a page", 6, second(p.client.JournalPage(ctx, p.ledger, 4, 9, wholeJournals, nil)))
	withheld("what an anchor has", 6, second(p.client.JournalsBelow(ctx, anchor, 4, 9, true)))
	p.onAsked = nil
	p.checkRecordsOfWhatIsMissing(t)
}

// checkRecordsOfWhatIsMissing lets a coordinator lie about the records that show why a journal is
// missing.
func (p *purged) checkRecordsOfWhatIsMissing(t *testing.T) {
	t.Helper()
	ctx := limited(t)
	change := func(key []byte, change func(*v1.LedgerRecord)) func(*v1.GetLedgerRecordsResponse) {
		return func(a *v1.GetLedgerRecordsResponse) {
			for _, record := range a.Records {
				if bytes.Equal(record.Key, key) {
					change(record)
				}
			}
		}
	}
	none := func(record *v1.LedgerRecord) { record.Value = nil }
	// The number below which the ledger is purged lies behind format and flag.
	more := func(record *v1.LedgerRecord) { record.Value[2]++ }
	p.noJournals = refusedAsPurged(t)
	for what, c := range map[string]struct {
		jsn uint64
		lie func(*v1.GetLedgerRecordsResponse)
	}{
		"a leaf that is hidden": {2, change(p.ledger.LeafKey(2), none)},
		"a larger purge":        {7, change(p.ledger.HeadKey(), more)},
		"no head":               {1, change(p.ledger.HeadKey(), none)},
		"no proof":              {1, func(a *v1.GetLedgerRecordsResponse) { a.Proof = nil }},
		// It has no leaf, either.
		"a journal that is none yet": {9, nil},
	} {
		p.onRecords = c.lie
		got, err := p.client.JournalPage(ctx, p.ledger, c.jsn, 1, JournalRead{}, nil)
		if isLie(t, what, got, err); errors.Is(err, PurgedJournal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	p.onRecords, p.noRecords = nil, refusedAsPurged(t)
	got, err := p.client.JournalPage(ctx, p.ledger, 2, 1, JournalRead{}, nil)
	if isLie(t, "records that are refused", got, err); errors.Is(err, PurgedJournal) {
		t.Error(err)
	}
	p.noRecords, p.noJournals = nil, nil
}

func TestALedgerIsClosed(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "closes")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	mill := must(client.Author(ctx, ledger, "mill", 0, handOf("mill")))(t)
	must(mill.Append(ctx, new(Draft).Add([]byte("word"))))(t)
	info := must(client.DescribeLedger(ctx, ledger, nil))(t)
	purge := must(bank.Append(ctx, new(Draft).Order(purgeOf(t, bank.seen, info, info.Size, true))))(t).FirstJSN
	if info := must(client.FindLedger(ctx, "closes", nil))(t); !info.Closed || info.Purged != 0 {
		t.Errorf("%+v", info)
	}
	if err := second(mill.Append(ctx, new(Draft).Add([]byte("more")))); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	sweep := &verify.Order{Until: 9, Sweep: &verify.SweepOrder{Purge: purge, From: 0, To: info.Size}}
	must(bank.Append(ctx, new(Draft).Order(sweep)))(t)
	if err := second(client.FindLedger(ctx, "closes", nil)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	if info := must(client.DescribeLedger(ctx, ledger, nil))(t); !info.Closed || info.Purged != 2 || info.Size != 4 {
		t.Errorf("%+v", info)
	}
}
