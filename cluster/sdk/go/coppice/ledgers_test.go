package coppice

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"coppice.dev/sdk/verify"
)

// handOf is the key of a member of a test.
func handOf(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func granted(name string, roles verify.Roles) verify.Grant {
	return verify.Grant{Name: name, Roles: roles, Key: verify.PublicKey(handOf(name).Public().(ed25519.PublicKey))}
}

// foundingOf is a ledger of the bank, which owns it, and the mill.
func foundingOf(name string) *verify.Founding {
	return &verify.Founding{Name: name, Members: []verify.Grant{
		granted("bank", verify.RoleOwner|verify.RoleWriter|verify.RoleReader),
		granted("mill", verify.RoleWriter|verify.RoleReader),
	}}
}

func found(t testing.TB, client *Client, name string) LedgerID {
	t.Helper()
	return must(client.FoundLedger(limited(t), foundingOf(name), "bank", handOf("bank")))(t).Ledger
}

func payloads(journals []LedgerJournal) string {
	var all []string
	for _, journal := range journals {
		all = append(all, string(journal.Envelope.Payload))
	}
	return strings.Join(all, ",")
}

var wholeJournals = JournalRead{Payload: true, Request: true}

func TestMembersAppendAndWhatTheyAppendedIsProven(t *testing.T) {
	t.Run("compact", func(t *testing.T) { walk(t, foundingOf("walk")) })
	t.Run("spread", func(t *testing.T) {
		founding := foundingOf("walk-spread")
		founding.Spread, founding.Policy = true, verify.LedgerPolicy{NoticeSeconds: 60, Occult: 1}
		walk(t, founding)
	})
}

func walk(t *testing.T, founding *verify.Founding) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := must(client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	mill := must(client.Author(ctx, ledger, "mill", 3, handOf("mill")))(t)
	draft := new(Draft).Add([]byte("invoice"), []byte("lot-7"), []byte("sack")).Add([]byte("note"))
	first := must(mill.Append(ctx, draft))(t)
	if first.Ledger != ledger || first.FirstJSN != 1 || first.Replayed || mill.Number() != 2 {
		t.Errorf("%+v, next %d", first, mill.Number())
	}
	// The receipt is for others, too.
	receipt := must(verify.Verify(first.Receipt, *l.key(t), nil))(t)
	if receipt.Journals.Size != 3 || len(receipt.Journals.Journals) != 2 ||
		string(receipt.Note) != string(first.Checkpoint) {
		t.Errorf("%+v", receipt.Journals)
	}
	paid := new(Draft).Add([]byte("paid"), []byte("lot-7")).IfSize(3).IfCount([]byte("lot-7"), 1)
	must(bank.Append(ctx, paid))(t)
	for _, read := range []*Read{nil, {At: &first.Stamp}} {
		info := must(client.FindLedger(ctx, founding.Name, read))(t)
		size := uint64(4)
		if read != nil {
			size = 3
		}
		if info.ID != ledger || info.Size != size || !reflect.DeepEqual(info.Founding.Policy, founding.Policy) ||
			info.Founding.Name != founding.Name || info.Founding.Spread != founding.Spread || len(info.Founding.Members) != 2 {
			t.Errorf("%+v", info)
		}
	}
	info := must(client.DescribeLedger(ctx, ledger, nil))(t)
	lineage := must(client.Lineage(ctx, ledger, []byte("lot-7"), 0, wholeJournals))(t)
	if payloads(lineage.Journals) != "paid,invoice" || lineage.Count != 2 || lineage.Journals[0].Signed == nil {
		t.Errorf("%+v", lineage)
	}
	newest := must(client.Lineage(ctx, ledger, []byte("lot-7"), 1, JournalRead{Payload: true}))(t)
	if payloads(newest.Journals) != "paid" || newest.Count != 2 || newest.Journals[0].Signed != nil {
		t.Errorf("%+v", newest)
	}
	none := must(client.Lineage(ctx, ledger, []byte("lot-8"), 0, wholeJournals))(t)
	if len(none.Journals) != 0 || none.Count != 0 || len(none.Proof) == 0 {
		t.Errorf("%+v", none)
	}
	page := must(client.JournalPage(ctx, ledger, 1, 2, wholeJournals, nil))(t)
	if payloads(page.Journals) != "invoice,note" || page.LedgerMark != info.Mark() {
		t.Errorf("%+v, described as %+v", page, info)
	}
	must(bank.Append(ctx, new(Draft).Add([]byte("more"))))(t)
	grown := must(client.JournalPage(ctx, ledger, 4, 9, wholeJournals, &page.LedgerMark))(t)
	if payloads(grown.Journals) != "more" || grown.Size != 5 {
		t.Errorf("%+v", grown)
	}
	if err := second(client.JournalPage(ctx, ledger, 5, 9, wholeJournals, nil)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	if err := second(client.FindLedger(ctx, "nobody", nil)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	record := must(client.LedgerMember(ctx, ledger, "mill"))(t)
	if record.Newest(3) != 1 || record.Newest(0) != 0 || record.Journals.Count != 2 {
		t.Errorf("%+v", record)
	}
	if absent := must(client.LedgerMember(ctx, ledger, "shop"))(t); absent != nil {
		t.Errorf("%+v", absent)
	}
}

func TestJournalsComeInPagesToTheEnd(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "paged")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	draft := new(Draft)
	for i := range 2*journalsOfPage + 10 {
		draft.Add(fmt.Append(nil, i))
	}
	must(bank.Append(ctx, draft))(t)
	next := uint64(1)
	for journal, err := range client.LedgerJournals(ctx, ledger, 1, JournalRead{Payload: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if journal.Leaf.JSN != next || string(journal.Envelope.Payload) != fmt.Sprint(next-1) {
			t.Fatalf("%+v, not %d", journal.Leaf, next)
		}
		next++
	}
	if next != 2*journalsOfPage+11 {
		t.Errorf("it ends at %d", next)
	}
	for _, err := range client.LedgerJournals(ctx, ledger, next, JournalRead{}) {
		if !errors.Is(err, NotFound) {
			t.Error(err)
		}
	}
}

func TestPagesThatAreTooLargeAreReadInParts(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "heavy")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	for range 10 {
		draft := new(Draft)
		for range 8 {
			draft.Add(make([]byte, 900<<10))
		}
		must(bank.Append(ctx, draft))(t)
	}
	if err := second(client.JournalPage(ctx, ledger, 0, 256, wholeJournals, nil)); !TooLarge(err) {
		t.Error(err)
	}
	count := 0
	for _, err := range client.LedgerJournals(ctx, ledger, 0, wholeJournals) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != 81 {
		t.Errorf("%d journals", count)
	}
}

func TestMembersComeGoAndChangeTheirKeys(t *testing.T) {
	l := membersLedger(t)
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "staff")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	mill := must(client.Author(ctx, ledger, "mill", 0, handOf("mill")))(t)
	join := verify.MemberChange{Kind: verify.ChangeJoin, Grant: granted("farm", verify.RoleWriter)}
	err := second(mill.Append(ctx, new(Draft).ChangeMembers(join)))
	if !errors.Is(err, RoleMissing) || OutcomeUnknown(err) {
		t.Error(err)
	}
	must(bank.Append(ctx, new(Draft).ChangeMembers(join)))(t)
	if err := second(bank.Append(ctx, new(Draft).ChangeMembers(join))); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	renewed := must(mill.NewKey("mill", handOf("mill-2")))(t)
	must(mill.Append(ctx, new(Draft).ChangeMembers(renewed)))(t)
	if err := second(mill.Append(ctx, new(Draft).Add([]byte("old key")))); !errors.Is(err, BadSignature) {
		t.Error(err)
	}
	mill = must(client.Author(ctx, ledger, "mill", 0, handOf("mill-2")))(t)
	must(mill.Append(ctx, new(Draft).Add([]byte("new key"))))(t)
	until := uint64(100)
	agent := verify.MemberChange{
		Kind: verify.ChangeAgent, Grant: granted("press", 0), Prefix: []byte("lot-"), Until: &until,
	}
	must(mill.Append(ctx, new(Draft).ChangeMembers(agent)))(t)
	press := must(client.Author(ctx, ledger, "press", 0, handOf("press")))(t)
	pressed := must(press.Append(ctx, new(Draft).Add([]byte("pressed"), []byte("lot-1"))))(t)
	elsewhere := new(Draft).Add([]byte("elsewhere"), []byte("other"))
	if err := second(press.Append(ctx, elsewhere)); !errors.Is(err, RoleMissing) {
		t.Error(err)
	}
	page := must(client.JournalPage(ctx, ledger, pressed.FirstJSN, 1, wholeJournals, nil))(t)
	leaf := page.Journals[0].Leaf
	if leaf.Agent == nil || *leaf.Agent != verify.MemberIDOf("press") || leaf.Member != verify.MemberIDOf("mill") {
		t.Errorf("%+v", leaf)
	}
	must(bank.Append(ctx, new(Draft).ChangeMembers(
		verify.MemberChange{Kind: verify.ChangeRevoke, Member: verify.MemberIDOf("farm")},
		verify.MemberChange{Kind: verify.ChangeRoles, Member: verify.MemberIDOf("mill"), Roles: verify.RoleVerifier},
		verify.MemberChange{Kind: verify.ChangeDispute, Member: verify.MemberIDOf("mill"), From: 3},
	)))(t)
	names := map[string]*verify.Member{}
	for member, err := range client.LedgerMembers(ctx, ledger) {
		if err != nil {
			t.Fatal(err)
		}
		names[member.Name] = member
	}
	if len(names) != 4 || names["press"].Agency == nil || names["mill"].Roles != verify.RoleVerifier ||
		*names["mill"].DisputedFrom != 3 || names["farm"].Keys[0].Until == nil {
		t.Errorf("%+v", names)
	}
	if err := second(client.Author(ctx, ledger, "shop", 0, handOf("shop"))); !errors.Is(err, NotAMember) {
		t.Error(err)
	}
}

func TestConditionsLanesAndEpochsAreRefusedByName(t *testing.T) {
	// A rollback is for a cluster of its own: others append meanwhile.
	l := startLedger(t, t.TempDir(), "--ledgers", "--replicas", "1")
	ctx, client := limited(t), l.client(t)
	ledger := found(t, client, "rules")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	other := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	for want, draft := range map[Reason]*Draft{
		LedgerChanged: new(Draft).Add([]byte("a")).IfSize(7),
		ClueChanged:   new(Draft).Add([]byte("a")).IfCount([]byte("lot"), 1),
	} {
		if err := second(bank.Append(ctx, draft)); !errors.Is(err, want) || OutcomeUnknown(err) || bank.Number() != 2 {
			t.Errorf("%s: %v", want, err)
		}
	}
	must(bank.Append(ctx, new(Draft).Add([]byte("a"))))(t)
	if err := second(other.Append(ctx, new(Draft).Add([]byte("b")))); !errors.Is(err, Lane) || other.Pending() != nil {
		t.Error(err)
	}
	if err := second(client.FoundLedger(ctx, foundingOf("rules"), "bank", handOf("bank"))); !errors.Is(err, NotPossible) {
		t.Error(err)
	}
	head := must(client.Head(ctx))(t)
	must(client.Commit(ctx, put("k", "1")))(t)
	must(client.Rollback(ctx, head.Stamp.Version, Order{Principal: "alice", Reason: "a test"}))(t)
	late := new(Draft).Add([]byte("late"))
	if err := second(bank.Append(ctx, late)); !errors.Is(err, StaleView) || OutcomeUnknown(err) {
		t.Error(err)
	}
	if err := bank.Look(ctx); err != nil {
		t.Fatal(err)
	}
	if appended := must(bank.Append(ctx, late))(t); appended.Stamp.Epoch != 1 || appended.FirstJSN != 2 {
		t.Errorf("%+v", appended)
	}
}

func TestAnUnverifiedClientAppendsAndReads(t *testing.T) {
	l := membersLedger(t)
	ctx := limited(t)
	client := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	ledger := found(t, client, "believed")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	for range 2 {
		appended := must(bank.Append(ctx, new(Draft).Add([]byte("a"), []byte("lot"))))(t)
		if len(appended.Receipt) > 0 {
			t.Errorf("%+v", appended)
		}
	}
	lineage := must(client.Lineage(ctx, ledger, []byte("lot"), 0, wholeJournals))(t)
	page := must(client.JournalPage(ctx, ledger, 0, 9, JournalRead{}, nil))(t)
	info := must(client.FindLedger(ctx, "believed", nil))(t)
	member := must(client.LedgerMember(ctx, ledger, "bank"))(t)
	if payloads(lineage.Journals) != "a,a" || len(page.Journals) != 3 || info.Size != 3 || member.Newest(0) != 3 {
		t.Errorf("%+v, %+v, %+v, %+v", lineage, page, info, member)
	}
	names := []string{}
	for named, err := range client.Ledgers(ctx, "believea") {
		if err != nil {
			t.Fatal(err)
		}
		if names = append(names, named.Name); named.Name == "believed" && named.ID != ledger {
			t.Errorf("%+v", named)
		}
	}
	if names[0] != "believed" {
		t.Error(names)
	}
}

// brokenSigner is a device that fails, or signs something else.
type brokenSigner struct {
	ed25519.PrivateKey
	err error
}

func (b *brokenSigner) Sign(random io.Reader, message []byte, options crypto.SignerOpts) ([]byte, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.PrivateKey.Sign(random, append(message, 0), options)
}

func TestDraftsAndKeysThatAreUnfitAreNotSent(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	ledger := found(t, client, "unfit")
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	calls := r.count("Append")
	clue := []byte("c")
	for i, draft := range []*Draft{
		{}, new(Draft).Add(nil, nil), new(Draft).Add(nil, clue, clue), new(Draft).Add(nil, make([]byte, 257)),
		new(Draft).Add(nil).IfCount(nil, 1), new(Draft).ChangeMembers(),
		new(Draft).ChangeMembers(verify.MemberChange{Kind: 9}),
	} {
		if appended, err := bank.Append(ctx, draft); err == nil || OutcomeUnknown(err) {
			t.Errorf("draft %d: %+v, %v", i, appended, err)
		}
	}
	device := errors.New("the device is away")
	for _, signer := range []crypto.Signer{
		&brokenSigner{handOf("bank"), device}, &brokenSigner{handOf("bank"), nil},
	} {
		author := must(client.Author(ctx, ledger, "bank", 0, signer))(t)
		if err := second(author.Append(ctx, new(Draft).Add(nil))); err == nil ||
			signer.(*brokenSigner).err != nil && !errors.Is(err, device) {
			t.Error(err)
		}
	}
	if r.count("Append") != calls {
		t.Error("something was sent")
	}
	curve := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	for _, signer := range []crypto.Signer{nil, curve} {
		if _, err := client.Author(ctx, ledger, "bank", 0, signer); err == nil {
			t.Errorf("%T signs for a member", signer)
		}
	}
	if _, err := client.Author(ctx, ledger, "bank", 16, handOf("bank")); err == nil {
		t.Error("there is a lane 16")
	}
	if _, err := client.FoundLedger(ctx, &verify.Founding{Name: "Unfit"}, "bank", handOf("bank")); err == nil {
		t.Error("a ledger without members is founded")
	}
}

func TestAPrivateKeyOfTheCommandIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mill.key")
	output := must(exec.Command(coppiceBin, "keygen", "--name", "mill", "--out", path).Output())(t)
	text := string(must(os.ReadFile(path))(t))
	name, key, err := ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	public := verify.VKey{Name: name, Key: verify.PublicKey(key.Public().(ed25519.PublicKey))}
	if name != "mill" || public.String() != strings.TrimSpace(string(output)) {
		t.Errorf("%s is read, and %s was made", public, output)
	}
	parts := strings.Split(strings.TrimSpace(text), "+")
	damaged := func(at int, part string) string {
		other := append([]string(nil), parts...)
		other[at] = part
		return strings.Join(other, "+")
	}
	for _, text := range []string{
		"", public.String(), damaged(0, "PUBLIC"), damaged(2, "bank"), damaged(3, "00000000"), damaged(4, "AQ=="), text[:30],
	} {
		if _, _, err := ParsePrivateKey(text); err == nil || strings.Contains(err.Error(), parts[4]) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAnAuthorEndsWithItsContext(t *testing.T) {
	l := membersLedger(t)
	client := l.client(t)
	ledger := found(t, client, "ended")
	bank := must(client.Author(limited(t), ledger, "bank", 0, handOf("bank")))(t)
	ctx, cancel := context.WithCancel(limited(t))
	cancel()
	if err := second(bank.Append(ctx, new(Draft).Add(nil))); !errors.Is(err, context.Canceled) || OutcomeUnknown(err) {
		t.Error(err)
	}
}
