package coppice

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// stamping is a time-stamping authority of RFC 3161: `openssl ts` behind HTTP, with its own keys.
type stamping struct {
	url string
	// root is the file that has its root certificate.
	root string
}

const stampingConfig = `[tsa]
serial = serial
crypto_device = builtin
signer_cert = signer.pem
certs = root.pem
signer_key = signer.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
accuracy = secs:1
ordering = no
tsa_name = no
ess_cert_id_chain = no
ess_cert_id_alg = sha256
`

func startStamping(t testing.TB) *stamping {
	t.Helper()
	directory := t.TempDir()
	path := func(name string) string { return filepath.Join(directory, name) }
	write := func(name string, content []byte) {
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeStampingKeys(t, write)
	write("tsa.cnf", []byte(stampingConfig))
	// The command numbers its tokens in a file.
	var turn sync.Mutex
	answer := func(w http.ResponseWriter, request *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		query, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 1<<16))
		if err == nil {
			err = os.WriteFile(path("query"), query, 0o600)
		}
		if err == nil {
			command := exec.CommandContext(request.Context(), "openssl", "ts", "-reply", "-config", "tsa.cnf",
				"-section", "tsa", "-queryfile", "query", "-out", "answer")
			command.Dir = directory
			err = command.Run()
		}
		token, readErr := os.ReadFile(path("answer"))
		if err != nil || readErr != nil {
			t.Errorf("openssl gives no token: %v, %v", err, readErr)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/timestamp-reply")
		_, _ = w.Write(token)
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(server.Close)
	return &stamping{url: server.URL, root: path("root.pem")}
}

// writeStampingKeys makes a root, and a certificate that may do nothing but stamp.
func writeStampingKeys(t testing.TB, write func(name string, content []byte)) {
	t.Helper()
	purpose := must(asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 8}}))(t)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign,
	}
	signer := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "stamps"},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		// The library would not mark the extended use as critical.
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: purpose}},
	}
	rootKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	encoded := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	write("root.pem", encoded("CERTIFICATE", must(
		x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey))(t)))
	write("signer.pem", encoded("CERTIFICATE", must(
		x509.CreateCertificate(rand.Reader, signer, root, &key.PublicKey, rootKey))(t)))
	write("signer.key", encoded("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key))(t)))
	write("serial", []byte("01\n"))
}
