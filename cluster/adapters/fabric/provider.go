package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
	"coppice.dev/sdk/verify"
)

const (
	// defaultCache is what a peer gives to the cache of its CouchDB.
	defaultCache        = 64 << 20
	defaultTimeout      = 30 * time.Second
	defaultStartTimeout = 60 * time.Second
	// startPause is how long a start waits between two attempts.
	startPause = 200 * time.Millisecond
	// pageBytesMax bounds one of the commits of imports, deletions and large blocks.
	pageBytesMax = 2 << 20
	// pageChanges bounds the changes of such a commit.
	pageChanges = 2048
	// spareBytes is room in a batch for keys and the record of the database.
	spareBytes = 8 << 10
)

// Options are the settings of a provider.
type Options struct {
	// Prefix begins all keys in the ledger: 1 to 32 bytes, the first of them above 0. By default it is
	// "fabric/". Peers that share a ledger have different prefixes.
	Prefix string
	// Directory is Fabric's directory of the state database, which Fabric deletes to rebuild the
	// state. Without one, the state is the same at each start.
	Directory string
	// Timeout bounds each call of Fabric that has no context, and each page of a longer one: 30 s by
	// default.
	Timeout time.Duration
	// StartTimeout is how long New and GetDBHandle wait for the ledger: 60 s by default.
	StartTimeout time.Duration
	// ValueBytesMax is the size above which ValidateKeyValue refuses a value: 1,000,000 by default.
	// All peers of a channel must have the same. The ledger's value_bytes_max must be larger, since
	// metadata lie next to the value.
	ValueBytesMax int
	// CacheBytes bounds the memory for cached state of all channels: 64 MiB by default.
	CacheBytes int
}

func (o *Options) fill() error {
	if o.Prefix == "" {
		o.Prefix = "fabric/"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.ValueBytesMax == 0 {
		o.ValueBytesMax = 1_000_000
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if len(o.Prefix) > prefixBytesMax || o.Prefix[0] == 0 {
		return fmt.Errorf("fabric: a prefix has 1 to %d bytes, and does not begin with 0", prefixBytesMax)
	}
	if o.Timeout < 0 || o.StartTimeout < 0 || o.ValueBytesMax < 0 ||
		o.CacheBytes < 0 {
		return errors.New("fabric: a limit is negative")
	}
	return nil
}

// provider has the databases of one generation of a prefix.
type provider struct {
	client     *coppice.Client
	options    Options
	generation uint64
	writer     [16]byte
	// batchBytes and valueBytes are the ledger's limits, and pageBytes is that of one page.
	batchBytes, valueBytes, pageBytes int
	// cache has the state of all channels. It follows the ledger until the provider is closed, and
	// followed is closed when it has ended.
	cache    *cached.Cache
	followed chan struct{}
	// life ends when the provider is closed.
	life context.Context
	end  context.CancelFunc
	// mutex is for the databases, which are by channel.
	mutex     sync.Mutex
	databases map[string]*database
}

// New gives Fabric a ledger as its state database. It waits for the ledger until
// Options.StartTimeout, and then fails with ErrUnreachable. The client must trust a key
// (coppice.Options.Trust). It stays open when the provider is closed.
func New(
	ctx context.Context,
	client *coppice.Client,
	options Options,
) (statedb.VersionedDBProvider, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	cache, err := cached.New(client, cached.Options{
		// What others write is of other peers, or of other channels, so its values are of no use.
		KeysOnly: true, Bytes: options.CacheBytes, Timeout: options.Timeout,
	})
	if err != nil {
		return nil, err
	}
	p := &provider{
		client: client, options: options, cache: cache, followed: make(chan struct{}),
		databases: make(map[string]*database),
	}
	p.writer = [16]byte(coppice.NewSessionID())
	p.life, p.end = context.WithCancel(context.Background())
	go func() {
		defer close(p.followed)
		// Evidence against the ledger is the error of all reads from then on.
		_ = cache.Follow(p.life)
	}()
	if err := p.patiently(ctx, p.begin); err != nil {
		p.close()
		return nil, err
	}
	var shape statedb.VersionedValue
	return providerOf(shape.Version, p), nil
}

// begin finds what a provider needs to know of its ledger, and waits for the cache.
func (p *provider) begin(ctx context.Context) (err error) {
	// A client without a key fails here.
	if _, err = p.client.Grown(ctx); err != nil {
		return err
	}
	if p.generation, err = p.findGeneration(ctx, p.options.Directory); err != nil {
		return err
	}
	if err = p.findLimits(ctx); err != nil {
		return err
	}
	_, err = p.cache.Head(ctx)
	return err
}

// patiently repeats a call until it succeeds, fails for good, or the time of a start is over.
func (p *provider) patiently(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.options.StartTimeout)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	for {
		err := call(ctx)
		mayPass := passing(err) || errors.Is(err, coppice.PreconditionFailed) || ctx.Err() != nil
		if err == nil || !mayPass {
			return err
		}
		timer := time.NewTimer(startPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if p.life.Err() != nil {
				return ErrClosed
			}
			return fmt.Errorf("%w in %v: %w", ErrUnreachable, p.options.StartTimeout, err)
		}
	}
}

// findLimits reads the limits of the ledger. They come from a header that is not proven: a wrong
// one makes the ledger refuse, and nothing else.
func (p *provider) findLimits(ctx context.Context) error {
	encoded, err := p.client.HeaderAt(ctx, 0)
	if err != nil {
		return err
	}
	header, err := verify.DecodeHeader(encoded)
	if err != nil {
		return err
	}
	if header.Genesis == nil {
		return errors.New("fabric: the first header of the ledger is not genesis")
	}
	params := header.Genesis.Params
	p.batchBytes, p.valueBytes = int(params.BatchBytesMax), int(params.ValueBytesMax)
	p.pageBytes = min(pageBytesMax, p.batchBytes/2)
	if params.KeyBytesMax < ledgerKeyMax || p.batchBytes < p.valueBytes+spareBytes {
		return fmt.Errorf(
			"%w: the ledger must have key_bytes_max %d, and batch_bytes_max above value_bytes_max by %d",
			ErrLimit,
			ledgerKeyMax,
			spareBytes,
		)
	}
	if p.options.ValueBytesMax >= p.valueBytes {
		return fmt.Errorf(
			"%w: ValueBytesMax is %d, and the ledger takes values of %d bytes with their metadata",
			ErrLimit,
			p.options.ValueBytesMax,
			p.valueBytes,
		)
	}
	return nil
}

// call gives a context for one call.
func (p *provider) call() (context.Context, context.CancelFunc, error) {
	if p.life.Err() != nil {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(p.life, p.options.Timeout)
	return ctx, cancel, nil
}

// database gives a channel's database, and reads its record.
func (p *provider) database(channel string) (*database, error) {
	if channel == "" || len(channel) > channelBytesMax {
		return nil, fmt.Errorf("%w: the name of the channel %q has more than %d bytes or none",
			ErrLimit, channel, channelBytesMax)
	}
	if err := checkName(channel, ""); err != nil {
		return nil, err
	}
	if p.life.Err() != nil {
		return nil, ErrClosed
	}
	d := p.named(channel)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.session == nil {
		if err := p.patiently(p.life, d.load); err != nil {
			return nil, err
		}
	}
	return d, d.complete()
}

// named gives a channel's database, which may not be loaded.
func (p *provider) named(channel string) *database {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	d := p.databases[channel]
	if d == nil {
		d = &database{
			provider: p,
			channel:  channel,
			keys:     keysOf(p.options.Prefix, p.generation, channel),
		}
		d.forget()
		p.databases[channel] = d
	}
	return d
}

// checkValue refuses what a transaction may not write. All peers of a channel must refuse the same.
func (p *provider) checkValue(key string, value []byte) error {
	if len(value) > p.options.ValueBytesMax {
		return fmt.Errorf("%w: the value of %q has %d bytes, at most %d fit",
			ErrLimit, key, len(value), p.options.ValueBytesMax)
	}
	return checkName("", key)
}

func (p *provider) close() {
	p.end()
	<-p.followed
}
