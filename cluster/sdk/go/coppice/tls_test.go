package coppice

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"iter"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
)

// authority signs certificates of a test.
type authority struct {
	directory   string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{directory: t.TempDir()}
	a.key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))(t)
	a.certificate = must(x509.ParseCertificate(der))(t)
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.directory, name) }

func (a *authority) write(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(a.path(name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes NAME.pem and NAME.key.
func (a *authority) issue(t testing.TB, name, role, host string) {
	t.Helper()
	a.serial++
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.ParseIP(host)}, URIs: []*url.URL{must(url.Parse("urn:coppice:role:" + role))(t)},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key))(t)
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))(t))
}

// server gives the settings of a server that demands a certificate of the authority.
func (a *authority) server(t testing.TB, name string) credentials.TransportCredentials {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	pair := must(tls.LoadX509KeyPair(a.path(name+".pem"), a.path(name+".key")))(t)
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{
			pair,
		}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})
}

func TestBothEndsShowCertificates(t *testing.T) {
	l := sharedLedger(t)
	ctx := limited(t)
	own, other := newAuthority(t), newAuthority(t)
	own.issue(t, "coordinator", "coordinator", "127.0.0.1")
	own.issue(t, "reader", "reader", "127.0.0.1")
	own.issue(t, "elsewhere", "coordinator", "192.0.2.1")
	other.issue(t, "coordinator", "coordinator", "127.0.0.1")
	server := func(a *authority, name string) string {
		return "https://" + startRelay(t, l, a.server(t, name)).endpoint
	}
	identity := func(a *authority, ca *authority) *TLS {
		return &TLS{CA: ca.path("ca.pem"), Certificate: a.path("reader.pem"), Key: a.path("reader.key")}
	}
	anonymous := &TLS{CA: own.path("ca.pem")}
	anybody := identity(own, own)
	anybody.AnyServer = true
	for name, c := range map[string]struct {
		endpoint string
		tls      *TLS
		works    bool
	}{
		"a coordinator":                          {server(own, "coordinator"), identity(own, own), true},
		"a reader in its place":                  {server(own, "reader"), identity(own, own), false},
		"a reader, and anybody will do":          {server(own, "reader"), anybody, true},
		"a coordinator of another host":          {server(own, "elsewhere"), identity(own, own), false},
		"a coordinator of another authority":     {server(other, "coordinator"), identity(own, own), false},
		"a client without a certificate":         {server(own, "coordinator"), anonymous, false},
		"a client that trusts another authority": {server(own, "coordinator"), identity(own, other), false},
	} {
		client := connect(
			t,
			Options{Endpoints: []string{c.endpoint}, Trust: l.key(t), TLS: c.tls, Patience: 50 * time.Millisecond},
		)
		_, err := client.Commit(ctx, put("tls/a", name))
		if (err == nil) != c.works || err != nil && OutcomeUnknown(err) && name != "a client without a certificate" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A certificate that was renewed is shown in the next handshake; one that can't be read is
	// refused.
	if err := os.WriteFile(own.path("reader.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := Options{Endpoints: []string{"https://127.0.0.1:1"}, Trust: l.key(t), TLS: identity(own, own)}
	if _, err := New(damaged); err == nil {
		t.Error("a damaged key is taken")
	}
}

// copyFile puts the content of one file into another.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, must(os.ReadFile(from))(t), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFilesThatChangeAreUsedOnceTheyFitTogether(t *testing.T) {
	l := sharedLedger(t)
	ctx := limited(t)
	own, other := newAuthority(t), newAuthority(t)
	for _, a := range []*authority{own, other} {
		a.issue(t, "coordinator", "coordinator", "127.0.0.1")
		a.issue(t, "reader", "reader", "127.0.0.1")
	}
	first := startRelay(t, l, own.server(t, "coordinator"))
	second := startRelay(t, l, other.server(t, "coordinator"))
	files := newAuthority(t)
	use := func(a *authority, names ...string) {
		for _, name := range names {
			copyFile(t, a.path(name), files.path(name))
		}
	}
	all := []string{"ca.pem", "reader.pem", "reader.key"}
	use(own, all...)
	identity := &TLS{CA: files.path("ca.pem"), Certificate: files.path("reader.pem"), Key: files.path("reader.key")}
	of := func(r *relay) *Client {
		client := connect(t, Options{
			Endpoints: []string{"https://" + r.endpoint}, Trust: l.key(t), TLS: identity, Patience: 50 * time.Millisecond,
		})
		client.routes.tls.pause = 0
		return client
	}
	before, after := of(first), of(second)
	reads := func(client *Client) error {
		_, err := client.Get(ctx, []byte("tls/live"), nil)
		return err
	}
	if reads(before) != nil || reads(after) == nil {
		t.Fatal("only the coordinator of the authority is called")
	}
	// A stream that is under way stays on its connection.
	old := before.routes.routes[0].link
	heads, stop := iter.Pull2(before.WatchHeads(ctx, Watch{Follow: true}))
	defer stop()
	if _, err, more := heads(); err != nil || !more {
		t.Fatal(err)
	}
	// Files that do not fit together change nothing; nor does one that is gone.
	use(other, "reader.pem")
	if err := reads(before); err != nil {
		t.Error(err)
	}
	if err := os.Remove(identity.CA); err != nil {
		t.Fatal(err)
	}
	if err := reads(before); err != nil || before.routes.routes[0].link != old {
		t.Error(err)
	}
	use(other, all...)
	if reads(before) == nil || reads(after) != nil {
		t.Error("only the coordinator of the other authority is called")
	}
	newest := must(l.client(t).Commit(ctx, put("tls/live", "1")))(t)
	for {
		head, err, more := heads()
		if err != nil || !more {
			t.Fatal(err)
		}
		if head.Header.Version >= newest.Stamp.Version {
			break
		}
	}
	if old.connection.GetState() == connectivity.Shutdown {
		t.Error("the old connection was closed under a stream")
	}
	stop()
	for state := old.connection.GetState(); state != connectivity.Shutdown; state = old.connection.GetState() {
		if !old.connection.WaitForStateChange(ctx, state) {
			t.Fatal("the old connection stays open")
		}
	}
	// Calls of many goroutines go on while the files change to and fro.
	use(own, all...)
	mixed := connect(t, Options{
		Endpoints: []string{"https://" + first.endpoint, "https://" + second.endpoint}, Trust: l.key(t), TLS: identity,
		Patience: 20 * time.Second,
	})
	mixed.routes.tls.pause = 0
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 30 {
				if err := reads(mixed); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		use([]*authority{other, own}[i%2], all...)
	}
	calls.Wait()
}

func TestOptionsAreJudgedBeforeTheFirstCall(t *testing.T) {
	key := sharedLedger(t).key(t)
	for _, endpoint := range []string{
		"", "host", "http://host", "ftp://host:1", "https://host:1", "http://host:1/path", ":1", "http://u@host:1",
	} {
		if _, err := New(Options{Endpoints: []string{endpoint}, Trust: key}); err == nil {
			t.Errorf("%q is taken for an endpoint", endpoint)
		}
	}
	for i, options := range []Options{
		{Trust: key}, {Endpoints: []string{"a:1"}}, {Endpoints: []string{"a:1"}, Trust: key, Unverified: true},
		{Endpoints: []string{"a:1"}, Unverified: true, Memory: &Memory{}},
		{Endpoints: []string{"a:1"}, Trust: key, Patience: -1},
		{Endpoints: []string{"a:1"}, Trust: key, Memory: &Memory{Checkpoint: []byte("no note")}},
		{Endpoints: make([]string, 17), Trust: key}, {Endpoints: []string{"a:1"}, Trust: key, TLS: &TLS{CA: "/nowhere"}},
	} {
		if _, err := New(options); err == nil {
			t.Errorf("options %d are taken", i)
		}
	}
}

func TestAnUnverifiedClientBelieves(t *testing.T) {
	l := sharedLedger(t)
	ctx := limited(t)
	client := connect(t, Options{Endpoints: []string{l.Endpoint}, Unverified: true})
	committed := must(client.Commit(ctx, put("believed/a", "1")))(t)
	got := must(client.Get(ctx, []byte("believed/a"), nil))(t)
	if len(committed.Receipt) > 0 || string(got.Record.Value) != "1" || len(got.Proof) > 0 ||
		len(client.Memory().Checkpoint) > 0 {
		t.Errorf("%+v, %+v", committed, got)
	}
	for record, err := range client.Range(ctx, []byte("believed/"), []byte("believed0"), nil) {
		if err != nil || string(record.Value) != "1" {
			t.Error(err)
		}
	}
}
