package coppice

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// lookAgain lies between two looks at the files.
	lookAgain = 2 * time.Second
	// pemBytesMax is the size of the largest file that is taken.
	pemBytesMax = 1 << 20
)

// roleURI is how a certificate states the role of its holder.
const roleURI = "urn:coppice:role:coordinator"

// liveTLS has the settings of TLS connections, made of files that are read again when a call needs
// them. Contents are compared and not times, because files may be replaced by renaming, by links,
// or one after the other. Until they fit together again, the settings that were made last are in
// force.
type liveTLS struct {
	files    TLS
	mutex    sync.Mutex
	config   *tls.Config
	contents [][]byte
	lookedAt time.Time
	pause    time.Duration
}

func newLiveTLS(files TLS) (*liveTLS, error) {
	if (files.Certificate == "") != (files.Key == "") {
		return nil, errors.New("coppice: certificates: a certificate and its key go together")
	}
	l := &liveTLS{files: files, pause: lookAgain, lookedAt: time.Now()}
	var err error
	if l.contents, err = files.read(); err == nil {
		l.config, err = files.config(l.contents)
	}
	if err != nil {
		return nil, fmt.Errorf("coppice: certificates: %w", err)
	}
	return l, nil
}

// now gives the settings in force; nil for plain connections.
func (l *liveTLS) now() *tls.Config {
	if l == nil {
		return nil
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if time.Since(l.lookedAt) < l.pause {
		return l.config
	}
	l.lookedAt = time.Now()
	contents, err := l.files.read()
	if err != nil || slices.EqualFunc(contents, l.contents, bytes.Equal) {
		return l.config
	}
	l.contents = contents
	if config, err := l.files.config(contents); err == nil {
		l.config = config
	}
	return l.config
}

// read gives the contents of the files: authorities, and the client's certificate and key.
func (t *TLS) read() (contents [][]byte, err error) {
	paths := []string{t.CA}
	if t.Certificate != "" {
		paths = append(paths, t.Certificate, t.Key)
	}
	for _, path := range paths {
		content, err := readShort(path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}

func readShort(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, pemBytesMax+1))
	if err == nil && len(content) > pemBytesMax {
		err = fmt.Errorf("%s has more than 1 MiB", path)
	}
	return content, err
}

// config makes the settings from contents. The host name is verified by them as well.
func (t *TLS) config(contents [][]byte) (*tls.Config, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	if !config.RootCAs.AppendCertsFromPEM(contents[0]) {
		return nil, fmt.Errorf("%s has none", t.CA)
	}
	if t.Certificate != "" {
		pair, err := tls.X509KeyPair(contents[1], contents[2])
		if err != nil {
			return nil, err
		}
		// The certificate is shown even if the server names other authorities.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if !t.AnyServer {
		config.VerifyConnection = requireCoordinator
	}
	return config, nil
}

// requireCoordinator judges a certificate whose chain and host name were verified.
func requireCoordinator(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("coppice: the server has no certificate")
	}
	states := func(uri *url.URL) bool { return uri.String() == roleURI }
	if !slices.ContainsFunc(state.PeerCertificates[0].URIs, states) {
		return errors.New("coppice: the server's certificate is not a coordinator's")
	}
	return nil
}
