// Command checkpoint writes the model and the recordings of package recorded to a folder that is
// not there, for vkmla run.
//
//	go run ./internal/lab/recorded/checkpoint FOLDER
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/vkmla/vkmla/internal/lab/recorded"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("checkpoint: want a folder")
	}
	if err := write(os.Args[1]); err != nil {
		log.Fatal("checkpoint: ", err)
	}
}

func write(dir string) error {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	if err := recorded.Model().Write(dir, 1); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "layers.npz"), recorded.Archive(), 0o666)
}
