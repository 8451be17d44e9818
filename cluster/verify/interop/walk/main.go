// Walks the root log of a ledger over HTTP with the packages of Go's checksum database, which know
// nothing of Coppice. It opens the checkpoint (sumdb/note), and checks the inclusion of every entry
// and the consistency of tree sizes (sumdb/tlog). Every hash is checked against the signed root.
//
//	walk URL VKEY
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
	bodyMax    = 32 << 20
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: walk URL VKEY")
		os.Exit(2)
	}
	if err := walk(strings.TrimSuffix(os.Args[1], "/")+"/", os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func walk(base, vkey string) error {
	log := &client{base: base, http: &http.Client{Timeout: 20 * time.Second}}
	size, root, err := log.checkpoint(vkey)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	hashes := tlog.TileHashReader(tlog.Tree{N: size, Hash: root}, log)
	entries, err := log.entries(size)
	if err != nil {
		return err
	}
	for i, entry := range entries {
		proof, err := tlog.ProveRecord(size, int64(i), hashes)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if err := tlog.CheckRecord(proof, size, root, int64(i), tlog.RecordHash(entry)); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	joined := 0
	for old := int64(1); old <= size; old += 1 + old/7 {
		oldRoot, err := tlog.TreeHash(old, hashes)
		if err != nil {
			return fmt.Errorf("root of %d entries: %w", old, err)
		}
		proof, err := tlog.ProveTree(size, old, hashes)
		if err != nil {
			return fmt.Errorf("consistency from %d: %w", old, err)
		}
		if err := tlog.CheckTree(proof, size, root, old, oldRoot); err != nil {
			return fmt.Errorf("consistency from %d: %w", old, err)
		}
		joined++
	}
	fmt.Printf("%d entries included, %d older sizes consistent, %d tiles authenticated\n", len(entries), joined, log.saved)
	return nil
}

// client reads the log. It is the tlog.TileReader of the hash reader that checks against the root.
type client struct {
	base  string
	http  *http.Client
	saved int
}

func (c *client) get(path string) ([]byte, error) {
	response, err := c.http.Get(c.base + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, bodyMax))
}

func (c *client) checkpoint(vkey string) (size int64, root tlog.Hash, err error) {
	body, err := c.get("checkpoint")
	if err != nil {
		return 0, root, err
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return 0, root, err
	}
	opened, err := note.Open(body, note.VerifierList(verifier))
	if err != nil {
		return 0, root, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[3] != "" || lines[0] != verifier.Name() {
		return 0, root, errors.New("not three lines that begin with the origin")
	}
	if size, err = strconv.ParseInt(lines[1], 10, 64); err != nil {
		return 0, root, err
	}
	root, err = tlog.ParseHash(lines[2])
	return size, root, err
}

func (c *client) entries(size int64) ([][]byte, error) {
	var entries [][]byte
	for first := int64(0); first < size; first += tileWidth {
		width := min(tileWidth, size-first)
		tile := tlog.Tile{H: tileHeight, L: 0, N: first / tileWidth, W: int(width)}
		path := "tile/entries/" + strings.TrimPrefix(tile.Path(), "tile/8/0/")
		bundle, err := c.get(path)
		if err != nil {
			return nil, err
		}
		for range width {
			if len(bundle) < 2 || len(bundle)-2 < int(binary.BigEndian.Uint16(bundle)) {
				return nil, fmt.Errorf("%s: cut short", path)
			}
			end := 2 + int(binary.BigEndian.Uint16(bundle))
			entries = append(entries, bundle[2:end])
			bundle = bundle[end:]
		}
		if len(bundle) != 0 {
			return nil, fmt.Errorf("%s: %d bytes too long", path, len(bundle))
		}
	}
	return entries, nil
}

func (c *client) Height() int { return tileHeight }

func (c *client) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		path := "tile/" + strings.TrimPrefix(tile.Path(), "tile/8/")
		body, err := c.get(path)
		if err != nil {
			return nil, err
		}
		if len(body) != tile.W*tlog.HashSize {
			return nil, fmt.Errorf("%s: %d bytes", path, len(body))
		}
		all = append(all, body)
	}
	return all, nil
}

func (c *client) SaveTiles(tiles []tlog.Tile, _ [][]byte) { c.saved += len(tiles) }
