package coppicev1

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheGeneratedCodeIsCurrent generates it again. If it fails, run `go generate ./v1`.
func TestTheGeneratedCodeIsCurrent(t *testing.T) {
	directory := t.TempDir()
	command := exec.Command("go", "-C", "../tools", "run", "./protogen", "../../../../proto", directory)
	if words, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, words)
	}
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		made, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(filepath.Base(file))
		if err != nil || !bytes.Equal(made, kept) {
			t.Errorf("%s is not what proto/ gives: run `go generate ./v1` (%v)", filepath.Base(file), err)
		}
	}
}
